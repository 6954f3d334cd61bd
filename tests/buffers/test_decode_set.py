"""The fields of SGLang 0.5.23's decode set, by the type and shape of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.buffers.decode_set import PREFIX, AdapterKind, DecodeSize, aligned_batch, decode_specs
from pipeline.buffers.decode_size import decode_size
from pipeline.buffers.layout import BufferSpec
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import deepseek, layout, workload_of

H = 7168
VOCAB = 129280
SMALL = DecodeSize(
    kind=AdapterKind.decode_graph,
    max_batch=4,
    tokens_per_request=1,
    max_tokens=4,
    hidden=8,
    vocab=16,
    num_dp_ranks=1,
    multiple=1,
    has_pp_proxies=False,
    counts_unpadded_tokens=False,
)


def size_of(parallel: Parallel, kind: AdapterKind = AdapterKind.decode_graph, **flags: Any) -> DecodeSize:
    return decode_size(workload_of(deepseek(), parallel, **flags), parallel, kind)


def fields_of(size: DecodeSize) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {spec.name.removeprefix(PREFIX): (spec.dtype, spec.shape) for spec in decode_specs(size)}


def named(size: DecodeSize, name: str) -> BufferSpec:
    (spec,) = [spec for spec in decode_specs(size) if spec.name == PREFIX + name]
    return spec


def test_a_pipelined_deployment_has_the_fields_of_the_servers_table() -> None:
    b = 512
    t = 512
    assert fields_of(size_of(layout("pp4"))) == {
        "input_ids": ("int64", (t,)),
        "input_embeds": ("bfloat16", (t, H)),
        "req_pool_indices": ("int64", (b,)),
        "seq_lens": ("int64", (b,)),
        "seq_lens_cpu": ("int64", (b,)),
        "out_cache_loc": ("int64", (t,)),
        "positions": ("int64", (t,)),
        "custom_mask": ("bool", (b + t,)),
        "next_token_logits_buffer": ("float32", (t, VOCAB)),
        "pp_proxy_tensors.hidden_states": ("bfloat16", (t, H)),
        "pp_proxy_tensors.residual": ("bfloat16", (t, H)),
        "global_num_tokens_gpu": ("int32", (1,)),
        "global_num_tokens_for_logprob_gpu": ("int32", (1,)),
    }


def test_an_expert_parallel_deployment_counts_its_unpadded_tokens() -> None:
    fields = fields_of(size_of(layout("dp8_ep8")))
    assert fields["num_token_non_padded"] == ("int32", (1,))
    assert fields["global_num_tokens_gpu"] == ("int32", (8,))
    assert fields["global_num_tokens_for_logprob_gpu"] == ("int32", (8,))
    assert not any(name.startswith("pp_proxy_tensors") for name in fields)


def test_several_tokens_a_request_widen_the_token_axis_only() -> None:
    fields = fields_of(size_of(layout("pp4"), tokens_per_request=2))
    b = 512
    t = 1024
    for name in ("input_ids", "out_cache_loc", "positions"):
        assert fields[name] == ("int64", (t,))
    for name in ("seq_lens", "seq_lens_cpu", "req_pool_indices"):
        assert fields[name] == ("int64", (b,))
    assert fields["custom_mask"] == ("bool", ((b + t) * 2,))
    assert fields["next_token_logits_buffer"] == ("float32", (t, VOCAB))
    assert fields["pp_proxy_tensors.residual"] == ("bfloat16", (t, H))


@pytest.mark.parametrize(
    ("name", "content"),
    [("input_ids", 0), ("seq_lens", 1), ("seq_lens_cpu", 1), ("custom_mask", True), ("positions", 0)],
)
def test_a_field_holds_what_the_servers_table_says(name: str, content: int | bool) -> None:
    assert named(SMALL, name).content == content


@pytest.mark.parametrize(
    ("presence", "fields"),
    [
        ("is_multimodal", {"mrope_positions": ("int64", (3, 4))}),
        ("counts_unpadded_tokens", {"num_token_non_padded": ("int32", (1,))}),
        (
            "has_pp_proxies",
            {f"pp_proxy_tensors.{name}": ("bfloat16", (4, 8)) for name in ("hidden_states", "residual")},
        ),
    ],
)
def test_a_field_is_there_exactly_when_its_reason_is(
    presence: str, fields: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    without = fields_of(SMALL)
    present = fields_of(replace(SMALL, **{presence: True}))
    assert {name: present[name] for name in present.keys() - without.keys()} == fields
    assert without.keys() <= present.keys()


def test_rope_positions_of_several_axes_are_cut_along_their_tokens() -> None:
    assert named(replace(SMALL, is_multimodal=True), "mrope_positions").rows_axis == 1


@pytest.mark.parametrize(
    ("kind", "has_cuda_graphs", "chosen"),
    [
        (AdapterKind.auto, True, AdapterKind.decode_graph),
        (AdapterKind.auto, False, AdapterKind.eager),
        (AdapterKind.decode_graph, False, AdapterKind.decode_graph),
        (AdapterKind.eager, True, AdapterKind.eager),
    ],
    ids=["auto with graphs", "auto without", "graph by hand", "eager by hand"],
)
def test_auto_picks_the_adapter_by_whether_there_are_graphs(
    kind: AdapterKind, has_cuda_graphs: bool, chosen: AdapterKind
) -> None:
    assert kind.chosen(has_cuda_graphs=has_cuda_graphs) is chosen


@pytest.mark.parametrize("batch", [1, 11, 12, 13, 59])
def test_a_batch_is_rounded_to_the_next_multiple(batch: int) -> None:
    aligned = aligned_batch(batch, replace(SMALL, multiple=12))
    assert aligned % 12 == 0
    assert 0 <= aligned - batch < 12
