from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.buffers.adapters import DecodeBuffers
from pipeline.buffers.decode_set import AdapterKind
from pipeline.engine.errors import SlotError
from pipeline.slots import DECODE_BUFFERS, LIVE_BUFFERS, RESERVED
from pipeline.workload.parallel import Parallel
from stages.adapter import Adapter
from stages.allocate import Allocate
from stages.plan import Plan
from tests.stages.runs import NOT_KNOWN, Bench, completed, recipe_of, recipe_without_rules, skipped

PREFILL: dict[str, Any] = {"chunked_prefill_size": 64}


def adapted(bench: Bench) -> DecodeBuffers:
    bench.run(Plan(), Allocate(), Adapter())
    return bench.context.read(DECODE_BUFFERS)


@pytest.mark.parametrize(
    ("kind", "disable_cuda_graph", "chosen"),
    [
        (AdapterKind.auto, False, AdapterKind.decode_graph),
        (AdapterKind.auto, True, AdapterKind.eager),
        (AdapterKind.decode_graph, True, AdapterKind.decode_graph),
        (AdapterKind.eager, False, AdapterKind.eager),
    ],
    ids=["auto with graphs", "auto without", "graph by hand", "eager by hand"],
)
def test_the_recipe_decides_whose_buffers_are_used(
    kind: AdapterKind, disable_cuda_graph: bool, chosen: AdapterKind
) -> None:
    bench = Bench(recipe_of(adapter=kind, disable_cuda_graph=disable_cuda_graph, **PREFILL))
    size = adapted(bench).size
    assert size.kind is chosen
    assert (size.max_batch, size.max_tokens) == (8, 64 if chosen is AdapterKind.eager else 8)


@pytest.mark.parametrize("kind", [AdapterKind.decode_graph, AdapterKind.eager], ids=lambda kind: kind.name)
def test_both_adapters_give_every_field_of_a_dummy_run(kind: AdapterKind) -> None:
    view = adapted(Bench(recipe_of(adapter=kind, tokens_per_request=2, **PREFILL))).view(3)
    assert {"next_token_logits_buffer", "custom_mask", "seq_lens", "global_num_tokens_gpu"} <= view.keys()
    assert view["input_ids"].shape == (6,)
    assert view["next_token_logits_buffer"].shape == (6, 1024)
    assert view["custom_mask"].all()
    assert view["seq_lens"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", [AdapterKind.decode_graph, AdapterKind.eager], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("pp", "present"), [(1, False), (2, True)])
def test_proxies_are_there_exactly_with_pipeline_stages(kind: AdapterKind, pp: int, present: bool) -> None:
    view = adapted(Bench(recipe_of(parallel=Parallel(pp=pp), adapter=kind))).view(2)
    assert ("pp_proxy_tensors.residual" in view) is present
    assert "mrope_positions" not in view


def test_the_fields_are_views_of_the_arena_and_nothing_is_allocated() -> None:
    bench = Bench()
    fields = adapted(bench).fields
    addresses = bench.context.read(RESERVED).addresses
    assert {name: tensor.data_ptr() for name, tensor in fields.items()} == {
        name: addresses[f"decode.{name}"] for name in fields
    }
    assert bench.allocated["adapter"] == 0
    assert len(bench.kernels.allocations) == 1


def test_the_summary_names_the_adapter_and_its_capacity() -> None:
    result = completed(Bench(recipe_of(adapter=AdapterKind.eager)).run(Plan(), Allocate(), Adapter()))
    assert result.summary == "eager: 11 fields, at most 8 requests"


# Live buffers: a caller inside a server hands over what the server's own decode step runs over.


def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@dataclass
class ServerBuffers:
    """The decode graph runner's buffers as SGLang holds them: attributes, an absent one None, the proxies in a dict.

    Larger than the recipe asks: 16 requests of one token; hidden size and vocabulary are those of the tiny model.
    """

    input_ids: Tensor | None = field(default_factory=lambda: zeros(16))
    input_embeds: Tensor | None = field(default_factory=lambda: zeros(16, 512, dtype=torch.bfloat16))
    req_pool_indices: Tensor | None = field(default_factory=lambda: zeros(16))
    seq_lens: Tensor | None = field(default_factory=lambda: zeros(16))
    seq_lens_cpu: Tensor | None = field(default_factory=lambda: zeros(16))
    out_cache_loc: Tensor | None = field(default_factory=lambda: zeros(16))
    positions: Tensor | None = field(default_factory=lambda: zeros(16))
    mrope_positions: Tensor | None = field(default_factory=lambda: zeros(3, 16))
    num_token_non_padded: Tensor | None = None
    custom_mask: Tensor | None = field(default_factory=lambda: torch.ones(32, dtype=torch.bool))
    next_token_logits_buffer: Tensor | None = field(default_factory=lambda: zeros(16, 1024, dtype=torch.float32))
    mamba_track_indices: Tensor | None = None
    global_num_tokens_gpu: Tensor | None = field(default_factory=lambda: zeros(1, dtype=torch.int32))
    global_num_tokens_for_logprob_gpu: Tensor | None = field(default_factory=lambda: zeros(1, dtype=torch.int32))
    encoder_lens: Tensor | None = None
    pp_proxy_tensors: dict[str, Tensor] | None = None


def tensor_of(owner: ServerBuffers, name: str) -> Tensor:
    """The server's own tensor that a field of the decode set stands for."""
    prefix, _, key = name.partition(".")
    value = getattr(owner, prefix)[key] if key else getattr(owner, name)
    assert isinstance(value, Tensor)
    return value


def adopting(owner: ServerBuffers, parallel: Parallel | None = None) -> Bench:
    return Bench(recipe_of(parallel=parallel), seeds={LIVE_BUFFERS: owner})


def test_live_buffers_are_adopted_and_never_copied() -> None:
    owner = ServerBuffers()
    bench = adopting(owner)
    fields = adapted(bench).fields
    assert len(fields) == 11
    assert {name: tensor.data_ptr() for name, tensor in fields.items()} == {
        name: tensor_of(owner, name).data_ptr() for name in fields
    }
    assert bench.allocated["adapter"] == 0


def test_a_view_of_live_buffers_is_cut_to_the_recipe_and_refills_the_servers_sequence_lengths() -> None:
    owner = ServerBuffers()
    view = adapted(adopting(owner)).view(3)
    assert view["input_embeds"].shape == (3, 512)
    assert view["custom_mask"].shape == (6,)
    assert view["next_token_logits_buffer"].shape == (3, 1024)
    assert view["global_num_tokens_gpu"].shape == (1,)
    assert view["seq_lens"].tolist() == [1, 1, 1]
    assert tensor_of(owner, "seq_lens").eq(1).all(), "the server's own tensor, not a copy of it"
    assert {name: tensor.data_ptr() for name, tensor in view.items()} == {
        name: tensor_of(owner, name).data_ptr() for name in view
    }


def test_live_proxies_are_read_from_the_servers_dict() -> None:
    proxies = {name: zeros(16, 512, dtype=torch.bfloat16) for name in ("hidden_states", "residual")}
    fields = adapted(adopting(ServerBuffers(pp_proxy_tensors=proxies), Parallel(pp=2))).fields
    for name, tensor in proxies.items():
        assert fields[f"pp_proxy_tensors.{name}"].data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("name", ["next_token_logits_buffer", "seq_lens", "custom_mask"])
def test_a_missing_live_buffer_is_an_error_that_names_it(name: str) -> None:
    owner = ServerBuffers()
    setattr(owner, name, None)
    bench = adopting(owner)
    with pytest.raises(SlotError, match=f"the buffers handed over do not fit: {name}: is missing"):
        adapted(bench)
    assert bench.context.writer(DECODE_BUFFERS) is None


def test_live_buffers_below_the_recipes_batch_are_an_error() -> None:
    owner = ServerBuffers(positions=zeros(7))
    with pytest.raises(SlotError, match=r"positions: shape must be at least \(8,\), got \(7,\)"):
        adapted(adopting(owner))


def test_the_summary_says_that_buffers_were_adopted() -> None:
    result = completed(adopting(ServerBuffers()).run(Plan(), Allocate(), Adapter()))
    assert result.summary == "adopted: 11 fields, at most 8 requests"


def test_without_rules_it_is_skipped_with_the_reason() -> None:
    bench = Bench(recipe_without_rules())
    result = skipped(bench.run(Plan(), Allocate(), Adapter()))
    assert result.reason.startswith(NOT_KNOWN)
