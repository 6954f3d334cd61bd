"""One whole run for each family: the real deep_gemm, a compiler that compiles nothing, every stage."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import PROJECT, Workplace
from tests.fake_toolkit import make_toolkit

# (model, parallel, server, further overrides, kernels that must be among the keys)
RECIPES = [
    ("deepseek_v32", "tp8", "sglang", (), ("mqa_logits", "paged_mqa_logits_metadata")),
    ("deepseek_v4_flash", "tp4", "sglang", ("server.fp8_wo_a=true",), ("hc_prenorm",)),
    ("kimi_k2", "dp8_ep8", "sglang", (), ("grouped_fp8_gemm_contiguous", "grouped_gemm_masked")),
    ("glm5", "tp8", "vllm", (), ("mqa_logits",)),
    ("qwen3_8b", "tp2", "vllm", (), ()),
    ("qwen3_30b_a3b", "single", "sglang", ("server.moe_runner_backend=deep_gemm",), ("masked",)),
    ("qwen3_next_80b", "dp4_ep4", "sglang", (), ("masked",)),
    ("qwen36_27b", "tp2", "sglang", (), ()),
    ("llama33_70b", "tp8", "sglang", (), ()),
    ("minimax_m2", "tp8_ep8", "vllm", ("server.use_deep_gemm=true",), ("contiguous",)),
    ("mimo_v2_flash", "tp8_ep8", "sglang", (), ()),
]
SMALL = ("server.fast_warmup=true", "server.chunked_prefill_size=512", "server.cuda_graph_max_bs=8")
SMALL += ("server.max_running_requests=8", "server.max_num_batched_tokens=512")


@pytest.mark.parametrize(
    ("model", "parallel", "server", "more", "named"), RECIPES, ids=[f"{one[0]}-{one[2]}" for one in RECIPES]
)
def test_a_recipe_of_each_family_bakes_and_verifies(
    workplace: Workplace, model: str, parallel: str, server: str, more: tuple[str, ...], named: tuple[str, ...]
) -> None:
    toolkit = make_toolkit(workplace.folder / "cuda")
    places = (f"output.dir={workplace.output}", f"store.dir={workplace.folder / 'store'}")
    choices = (f"model={model}", f"parallel={parallel}", f"server={server}", f"toolkit.cuda_home={toolkit.home}")
    command = [sys.executable, str(PROJECT / "run.py"), *choices, *places, *SMALL, *more]
    done = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = workplace.report
    assert report["status"] == "ok"
    assert report["sweep"]["keys"] == len(workplace.entries) > 0
    assert report["sweep"]["not_in_library"] == []
    assert report["verify"]["coverage_compiles"] == 0
    assert report["buffers"]["allocations_after"] == 0
    assert report["autotune"]["forward_gemms"] > 0
    assert report["plan"]["rules"]
    keys = [entry.name for entry in workplace.entries]
    assert all(any(name in key for key in keys) for name in named), keys


@pytest.mark.parametrize("model", ["glm45", "kimi_k25", "gpt_oss_120b"])
def test_a_model_without_block_fp8_ends_well_and_says_why(workplace: Workplace, model: str) -> None:
    command = [sys.executable, str(PROJECT / "run.py"), f"model={model}", "mode=plan"]
    done = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "not FP8 with" in done.stdout
