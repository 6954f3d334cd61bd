"""How large the decode set of a deployment is: graph or eager, rounded to what every parallel axis divides."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.buffers.decode_set import AdapterKind, aligned_batch
from pipeline.buffers.decode_size import decode_size
from pipeline.workload.parallel import A2A, Parallel
from tests.buffers.test_decode_set import VOCAB, fields_of, size_of
from tests.servers.recipes import layout, tiny, workload_of


def test_a_server_without_graphs_gets_the_eager_set() -> None:
    assert size_of(layout("tp8"), AdapterKind.auto).kind is AdapterKind.decode_graph
    assert size_of(layout("tp8"), AdapterKind.auto, disable_cuda_graph=True).kind is AdapterKind.eager


def test_the_graph_set_is_as_large_as_the_largest_captured_batch() -> None:
    size = size_of(layout("tp8"), cuda_graph_max_bs=48)
    assert (size.max_batch, size.max_tokens) == (48, 48)


def test_the_eager_set_has_the_token_axis_of_prefill_and_the_logits_of_decode() -> None:
    size = size_of(layout("tp8"), AdapterKind.eager, max_running_requests=64, tokens_per_request=2)
    assert (size.max_batch, size.tokens_per_request, size.max_tokens) == (64, 2, 8192)
    fields = fields_of(size)
    assert fields["input_ids"] == ("int64", (8192,))
    assert fields["next_token_logits_buffer"] == ("float32", (128, VOCAB))
    assert fields["custom_mask"] == ("bool", ((64 + 128) * 2,))


def test_the_eager_set_holds_its_largest_batch_when_prefill_is_smaller() -> None:
    size = size_of(layout("tp8"), AdapterKind.eager, chunked_prefill_size=16, max_running_requests=64)
    assert size.max_tokens == 64


def test_the_eager_set_without_chunks_holds_its_largest_batch() -> None:
    assert size_of(layout("tp8"), AdapterKind.eager, chunked_prefill_size=-1).max_tokens >= 512


# Rule 3 of design.md section 5: every dummy run's batch is rounded to one lcm, and buffers are sized after it.

SYNCED = Parallel(tp=6, attn_cp=2, moe_dense_tp_size=1)
SIX = {"num_attention_heads": 6, "moe_intermediate_size": 768}


@pytest.mark.parametrize("kind", [AdapterKind.decode_graph, AdapterKind.eager], ids=lambda kind: kind.name)
def test_buffers_are_sized_after_the_batch_is_rounded(kind: AdapterKind) -> None:
    flags: dict[str, Any] = {"cuda_graph_max_bs": 50, "max_running_requests": 50, "chunked_prefill_size": 16}
    workload = workload_of(tiny(**SIX), SYNCED, **flags)
    size = decode_size(workload, SYNCED, kind)
    assert size.multiple == 12
    assert (size.max_batch, size.max_tokens) == (60, 60)
    assert aligned_batch(50, size) == size.max_batch


def test_without_mlp_sync_a_batch_is_left_as_it_is() -> None:
    size = size_of(layout("tp8"), cuda_graph_max_bs=7)
    assert (size.multiple, size.max_batch) == (1, 7)


def test_attention_dp_rounds_to_the_attention_width() -> None:
    size = size_of(Parallel(tp=8, attn_dp=2, moe_a2a_backend=A2A.none), cuda_graph_max_bs=7)
    assert (size.multiple, size.max_batch) == (4, 8)
