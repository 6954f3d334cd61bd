from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.servers.sglang.arguments import server_arguments
from pipeline.servers.sglang.askable import AskableSglang
from pipeline.servers.sglang.flags import (
    WITHOUT_GRAPHS,
    AttentionBackend,
    DeepEpMode,
    DenseBackend,
    FusedShared,
    MoeRunner,
    PdRole,
    SglangFlags,
)
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import shipped

CHECKPOINT = Path("/checkpoint")
FIXED = "--model-path /checkpoint --load-format dummy --skip-tokenizer-init"


def arguments_of(parallel: Parallel | None = None, **flags: Any) -> str:
    return " ".join(server_arguments(SglangFlags(version="0.5.23", **flags), parallel or Parallel(), CHECKPOINT))


def options(arguments: str) -> list[list[str]]:
    """Each argument with its values, in any order."""
    grouped: list[list[str]] = []
    for word in arguments.split():
        if word.startswith("--"):
            grouped.append([word])
        else:
            grouped[-1].append(word)
    return sorted(grouped)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        (Parallel(tp=8), "--tp-size 8"),
        (Parallel(tp=8, pp=4), "--tp-size 8 --pp-size 4 --nnodes 4 --dist-init-addr 127.0.0.1:25000"),
        (Parallel(tp=8, ep=8), "--tp-size 8 --ep-size 8"),
        (
            Parallel(tp=8, attn_dp=8, moe_a2a_backend=A2A.deepep),
            "--tp-size 8 --dp-size 8 --enable-dp-attention --moe-a2a-backend deepep",
        ),
        (Parallel(tp=8, moe_dense_tp_size=1), "--tp-size 8 --moe-dense-tp-size 1"),
        (Parallel(tp=8, attn_cp=2, moe_dp=4), "--tp-size 8 --attn-cp-size 2 --moe-dp-size 4"),
        (Parallel(), ""),
    ],
)
def test_a_layout_in_the_server_s_own_words(parallel: Parallel, expected: str):
    assert arguments_of(parallel) == " ".join(filter(None, [FIXED, expected]))


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


EVERY_FLAG = {
    "moe_runner_backend": MoeRunner.deep_gemm,
    "fp8_gemm_backend": DenseBackend.cutlass,
    "attention_backend": AttentionBackend.fa3,
    "deepep_mode": DeepEpMode.normal,
    "ep_num_redundant_experts": 32,
    "chunked_prefill_size": 4096,
    "max_running_requests": 64,
    "cuda_graph_max_bs": 128,
    "disaggregation_mode": PdRole.decode,
    "shared_experts_fusion": FusedShared.enforced,
    "enable_deterministic_inference": True,
    "enable_two_batch_overlap": True,
    "enable_single_batch_overlap": True,
    "mtp": True,
    "tokens_per_request": 3,
    "disable_cuda_graph": True,
    "args": "--mem-fraction-static 0.75",
}
# As version 0.5.0 of Preheat wrote them, in its order.
EVERY_ARGUMENT = (
    "--model-path /checkpoint --load-format dummy --skip-tokenizer-init --tp-size 16 --ep-size 16 --dp-size 16 "
    "--moe-dense-tp-size 1 --enable-dp-attention --moe-a2a-backend deepep --nnodes 2 --dist-init-addr 127.0.0.1:25000 "
    "--moe-runner-backend deep_gemm --fp8-gemm-backend cutlass --prefill-attention-backend fa3 --deepep-mode normal "
    "--ep-num-redundant-experts 32 --chunked-prefill-size 4096 --max-running-requests 64 "
    "--cuda-graph-max-bs-decode 128 --disaggregation-mode decode "
    "--enforce-shared-experts-fusion --enable-deterministic-inference "
    "--enable-two-batch-overlap --enable-single-batch-overlap --speculative-algorithm EAGLE --speculative-num-steps 2 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 3 --cuda-graph-backend-decode disabled "
    "--cuda-graph-backend-prefill disabled --mem-fraction-static 0.75"
)


def test_a_recipe_with_every_flag_has_every_argument_once():
    parallel = Parallel(tp=16, ep=16, attn_dp=16, moe_dense_tp_size=1, moe_a2a_backend=A2A.deepep)
    assert options(arguments_of(parallel, **EVERY_FLAG)) == options(EVERY_ARGUMENT)
    assert arguments_of(parallel, **EVERY_FLAG).endswith("--mem-fraction-static 0.75")


@pytest.mark.parametrize("backend", [A2A.none, A2A.deepep])
def test_the_mode_of_deepep_is_given_when_it_is_not_the_server_s_default(backend: A2A):
    """SGLang's own default is auto as well, so auto need not be given."""
    parallel = Parallel(tp=8, ep=8, moe_a2a_backend=backend)
    assert "--deepep-mode" not in arguments_of(parallel)
    assert arguments_of(parallel, deepep_mode=DeepEpMode.low_latency).endswith("--deepep-mode low_latency")


def test_what_was_typed_comes_last_and_verbatim():
    typed = "--attention-backend 'flash infer' --tp-size 4"
    arguments = server_arguments(SglangFlags(args=typed, mtp=True), Parallel(tp=8), CHECKPOINT)
    assert arguments[-4:] == ["--attention-backend", "flash infer", "--tp-size", "4"]


def test_graphs_are_tried_both_ways_unless_they_are_off():
    askable = AskableSglang()
    both = askable.variants(SglangFlags(args="--x"), Parallel(), CHECKPOINT)
    words = [*FIXED.split(), "--x"]
    assert both == {"as configured": words, "without graphs": [*words, *WITHOUT_GRAPHS]}
    off = askable.variants(SglangFlags(disable_cuda_graph=True), Parallel(), CHECKPOINT)
    assert off == {"as configured": [*FIXED.split(), *WITHOUT_GRAPHS]}


def test_options_that_are_variables_of_the_server():
    variables = AskableSglang().variables(
        shipped("deepseek_v4_flash", expert_dtype="fp8"),
        SglangFlags(fast_warmup=True, use_deepgemm_bmm=False),
        Parallel(pp=2, layer_partition=[30, 31]),
    )
    assert variables == {
        "SGLANG_DSV4_FP4_EXPERTS": "0",
        "SGLANG_JIT_DEEPGEMM_FAST_WARMUP": "1",
        "SGLANG_PP_LAYER_PARTITION": "30,31",
        "SGLANG_USE_DEEPGEMM_BMM": "0",
    }


@pytest.mark.parametrize("model", [shipped("deepseek"), shipped("deepseek_v4_flash", expert_dtype="fp4")])
def test_a_recipe_without_such_options_sets_no_variable(model: Model):
    assert AskableSglang().variables(model, SglangFlags(), Parallel(pp=2)) == {}


def test_one_rank_runs_without_its_peers():
    assert AskableSglang().without_peers(Path("/gpu")) == {
        "SGLANG_NCCL_SO_PATH": "/gpu/libvnccl.so",
        "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "false",
    }
