from __future__ import annotations

import pytest

from pipeline.buffers.adapters import DecodeBuffers
from pipeline.buffers.decode_set import AdapterKind
from pipeline.slots import DECODE_BUFFERS, RESERVED
from pipeline.workload.parallel import Parallel
from stages.adapter import Adapter
from stages.allocate import Allocate
from stages.plan import Plan
from tests.stages.runs import Bench, recipe_of

PREFILL = {"chunked_prefill_size": 64}


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
    assert len(bench.kernels.asked) == 1


def test_the_summary_names_the_adapter_and_its_capacity() -> None:
    result = Bench(recipe_of(adapter=AdapterKind.eager)).run(Plan(), Allocate(), Adapter())
    assert result.summary == "eager: 11 fields, at most 8 requests"
