"""One whole run for each family: the real deep_gemm, a compiler that compiles nothing, every stage."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.conftest import PROJECT, Workplace
from tests.fake_toolkit import make_toolkit

SMALL = (
    "server.cuda_graph_max_bs=8",
    "server.max_running_requests=8",
)
SMALL_OF_SERVER = {
    "sglang": ("server.fast_warmup=true", "server.chunked_prefill_size=512"),
    "vllm": ("server.max_num_batched_tokens=512",),
}


@dataclass(frozen=True)
class Case:
    """A shipped recipe, and parts of names that must be among its keys."""

    model: str
    parallel: str
    server: str
    overrides: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.model}-{self.server}"


CASES = [
    Case("deepseek_v32", "tp8", "sglang", named=("mqa_logits", "paged_mqa_logits_metadata")),
    Case("deepseek_v4_flash", "tp4", "sglang", ("server.fp8_wo_a=true",), ("hc_prenorm",)),
    Case("kimi_k2", "dp8_ep8", "sglang", named=("grouped_fp8_gemm_contiguous", "grouped_gemm_masked")),
    Case("glm5", "tp8", "vllm", named=("mqa_logits",)),
    Case("qwen3_8b", "tp2", "vllm"),
    Case("qwen3_30b_a3b", "single", "sglang", ("server.moe_runner_backend=deep_gemm",), ("masked",)),
    Case("qwen3_next_80b", "dp4_ep4", "sglang", named=("masked",)),
    Case("qwen36_27b", "tp2", "sglang"),
    Case("llama33_70b", "tp8", "sglang"),
    Case("minimax_m2", "tp8_ep8", "vllm", ("server.use_deep_gemm=true",), ("contiguous",)),
    Case("mimo_v2_flash", "tp8_ep8", "sglang"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_recipe_of_each_family_bakes_and_verifies(workplace: Workplace, case: Case) -> None:
    toolkit = make_toolkit(workplace.folder / "cuda")
    command = [sys.executable, str(PROJECT / "run.py")]
    command += [f"model={case.model}", f"parallel={case.parallel}", f"server={case.server}"]
    command += [f"toolkit.cuda_home={toolkit.home}"]
    command += [f"output.dir={workplace.output}", f"store.dir={workplace.folder / 'store'}"]
    command += [*SMALL, *SMALL_OF_SERVER[case.server], *case.overrides]
    done = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = workplace.report
    assert report["status"] == "ok"
    assert report["sweep"]["keys"] == len(workplace.entries) > 0
    assert report["sweep"]["not_in_library"] == []
    assert report["verify"]["coverage_compiles"] == 0
    assert report["buffers"]["allocations_after"] == 0
    assert report["forward"]["gemms"] > 0
    assert report["plan"]["rules"]
    keys = [entry.name for entry in workplace.entries]
    assert all(any(name in key for key in keys) for name in case.named), keys


@pytest.mark.slow
@pytest.mark.parametrize("model", ["glm45", "kimi_k25", "gpt_oss_120b"])
def test_a_model_without_block_fp8_ends_well_and_says_why(workplace: Workplace, model: str) -> None:
    command = [sys.executable, str(PROJECT / "run.py"), f"model={model}", "mode=plan"]
    done = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "not FP8 with" in done.stdout
