from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.asking.flags import WITHOUT_GRAPHS, environment_of_flags, server_arguments, variants
from pipeline.recipe import Recipe
from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.servers import FusedShared, MoeRunner, Server
from tests.workload.recipes import shipped, target, tiny

CHECKPOINT = Path("/checkpoint")


def arguments_of(parallel: Parallel | None = None, **flags: Any) -> str:
    recipe = Recipe(
        model=tiny(),
        parallel=parallel or Parallel(),
        server=Server(name="sglang", version="0.5.23", **flags),
        target=target(),
    )
    return " ".join(server_arguments(recipe, CHECKPOINT))


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        (Parallel(tp=8), "--tp-size 8"),
        (Parallel(tp=8, pp=4), "--tp-size 8 --pp-size 4 --nnodes 4 --dist-init-addr 127.0.0.1:25000"),
        (Parallel(tp=8, ep=8), "--tp-size 8 --ep-size 8"),
        (
            Parallel(tp=8, attn_dp=8, moe_a2a_backend=A2A.deepep),
            "--tp-size 8 --dp-size 8 --enable-dp-attention --moe-a2a-backend deepep --deepep-mode auto",
        ),
        (Parallel(tp=8, moe_dense_tp_size=1), "--tp-size 8 --moe-dense-tp-size 1"),
        (Parallel(), ""),
    ],
)
def test_a_layout_in_the_server_s_own_words(parallel: Parallel, expected: str):
    fixed = "--model-path /checkpoint --load-format dummy --skip-tokenizer-init"
    assert arguments_of(parallel) == " ".join(filter(None, [fixed, expected]))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"moe_runner_backend": MoeRunner.deep_gemm}, "--moe-runner-backend deep_gemm"),
        ({"shared_experts_fusion": FusedShared.off}, "--disable-shared-experts-fusion"),
        ({"chunked_prefill_size": 4096, "max_running_requests": 64}, "--chunked-prefill-size 4096"),
        ({"disable_cuda_graph": True}, " ".join(WITHOUT_GRAPHS)),
        ({"mtp": True, "tokens_per_request": 4}, "--speculative-num-steps 3"),
        ({"mtp": True, "tokens_per_request": 4}, "--speculative-num-draft-tokens 4"),
    ],
)
def test_a_flag_that_the_recipe_sets(flags: dict[str, Any], expected: str):
    assert expected in arguments_of(**flags)
    assert expected not in arguments_of()


def test_what_was_typed_comes_last_and_verbatim():
    typed = "--attention-backend 'flash infer' --tp-size 4"
    recipe = Recipe(model=tiny(), parallel=Parallel(tp=8), server=Server(name="sglang", args=typed), target=target())
    arguments = server_arguments(recipe, CHECKPOINT)
    assert arguments[-4:] == ["--attention-backend", "flash infer", "--tp-size", "4"]


def test_graphs_are_tried_both_ways_unless_they_are_off():
    recipe = Recipe(model=tiny(), server=Server(name="sglang"), target=target())
    both = variants(recipe, ["--x"])
    assert both == {"as configured": ["--x"], "without graphs": ["--x", *WITHOUT_GRAPHS]}
    recipe.server.disable_cuda_graph = True
    assert list(variants(recipe, ["--x"])) == ["as configured"]


def test_options_that_are_variables_of_the_server():
    recipe = Recipe(
        model=shipped("deepseek_v4_flash", expert_dtype="fp8"),
        parallel=Parallel(pp=2, layer_partition=[30, 31]),
        server=Server(name="sglang", fast_warmup=True, use_deepgemm_bmm=False),
        target=target(),
    )
    assert environment_of_flags(recipe) == {
        "SGLANG_DSV4_FP4_EXPERTS": "0",
        "SGLANG_JIT_DEEPGEMM_FAST_WARMUP": "1",
        "SGLANG_PP_LAYER_PARTITION": "30,31",
        "SGLANG_USE_DEEPGEMM_BMM": "0",
    }
