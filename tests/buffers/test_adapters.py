from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.buffers.adapters import DecodeBuffers, adopt, from_arena
from pipeline.buffers.arena import Arena
from pipeline.buffers.decode_set import PREFIX, DecodeSize, decode_specs
from pipeline.buffers.layout import lay_out
from pipeline.engine.errors import CapacityError, SlotError
from tests.buffers.test_decode_set import SMALL

FULL = replace(SMALL, is_multimodal=True, has_pp_proxies=True, counts_unpadded_tokens=True)
PROXIES = ("hidden_states", "residual")


def reserved(size: DecodeSize) -> DecodeBuffers:
    """The set in an arena of its own."""
    layout = lay_out(decode_specs(size))
    return from_arena(size, Arena(layout, torch.full((layout.arena_bytes,), 0xFF, dtype=torch.uint8)))


def live(size: DecodeSize, **changes: Any) -> SimpleNamespace:
    """A server's own buffers as attributes; the proxies in a dict, as the server holds them."""
    tensors = {
        spec.name.removeprefix(PREFIX): torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
        for spec in decode_specs(size)
    }
    owner = SimpleNamespace(**{name: tensor for name, tensor in tensors.items() if "." not in name})
    if size.has_pp_proxies:
        owner.pp_proxy_tensors = {name: tensors[f"pp_proxy_tensors.{name}"] for name in PROXIES}
    for name, tensor in changes.items():
        setattr(owner, name, tensor)
    return owner


@st.composite
def decode_sizes(draw: st.DrawFn) -> DecodeSize:
    """Any admissible size: the largest batch is a multiple, the token axis holds it."""
    multiple = draw(st.integers(1, 6))
    per_request = draw(st.integers(1, 4))
    batch = multiple * draw(st.integers(1, 5))
    return replace(
        SMALL,
        max_batch=batch,
        tokens_per_request=per_request,
        max_tokens=batch * per_request + multiple * draw(st.integers(0, 20)),
        multiple=multiple,
        num_dp_ranks=draw(st.integers(1, 4)),
        **{name: draw(st.booleans()) for name in ("is_multimodal", "has_pp_proxies", "counts_unpadded_tokens")},
    )


def expected_shape(name: str, size: DecodeSize, batch: int) -> tuple[int, ...]:
    """What SGLang 0.5.23 hands to a run of `batch` requests."""
    tokens = batch * size.tokens_per_request
    name = name.removeprefix("pp_proxy_tensors.")
    if name in ("input_ids", "out_cache_loc", "positions"):
        return (tokens,)
    if name in ("input_embeds", *PROXIES):
        return (tokens, size.hidden)
    if name.startswith("global_num_tokens"):
        return (size.num_dp_ranks,)
    special = {
        "mrope_positions": (3, tokens),
        "custom_mask": ((batch + tokens) * size.tokens_per_request,),
        "next_token_logits_buffer": (tokens, size.vocab),
        "num_token_non_padded": (1,),
    }
    return special.get(name, (batch,))


@given(size=decode_sizes())
@settings(deadline=None, database=None, max_examples=60)
def test_the_capacity_holds_every_admissible_batch(size: DecodeSize) -> None:
    buffers = reserved(size)
    for batch in range(size.multiple, size.max_batch + 1, size.multiple):
        for name, view in buffers.view(batch).items():
            whole = buffers.fields[name]
            assert tuple(view.shape) == expected_shape(name, size, batch), name
            assert view.data_ptr() == whole.data_ptr()
            assert all(part <= capacity for part, capacity in zip(view.shape, whole.shape, strict=True))


@given(size=decode_sizes(), batch=st.integers(-1, 40))
@settings(deadline=None, database=None, max_examples=60)
def test_any_other_batch_is_a_capacity_error(size: DecodeSize, batch: int) -> None:
    buffers = reserved(size)
    if 1 <= batch <= size.max_batch and batch % size.multiple == 0:
        assert buffers.view(batch)
    else:
        with pytest.raises(CapacityError):
            buffers.view(batch)


# Rule 1 of design.md section 5: a field that is absent is absent in every view, never sliced.

OPTIONAL = {
    "is_multimodal": ("mrope_positions",),
    "has_pp_proxies": tuple(f"pp_proxy_tensors.{name}" for name in PROXIES),
    "counts_unpadded_tokens": ("num_token_non_padded",),
}


@pytest.mark.parametrize("presence", OPTIONAL)
def test_an_absent_field_is_absent_in_every_view(presence: str) -> None:
    size = replace(FULL, **{presence: False})
    for buffers in (reserved(size), adopt(size, live(FULL))):
        for batch in range(1, size.max_batch + 1):
            assert not set(OPTIONAL[presence]) & buffers.view(batch).keys()


def test_a_text_model_adopts_buffers_that_lack_what_it_does_not_need() -> None:
    owner = live(SMALL, mrope_positions=None, pp_proxy_tensors=None, num_token_non_padded=None)
    assert adopt(SMALL, owner).view(2).keys() == reserved(SMALL).view(2).keys()


# Rule 2: sequence lengths are never zero in a dummy run.


@pytest.mark.parametrize("field", ["seq_lens", "seq_lens_cpu"])
def test_a_view_refills_sequence_lengths_that_were_zeroed(field: str) -> None:
    for buffers in (reserved(FULL), adopt(FULL, live(FULL))):
        for batch in (4, 1, 3):
            buffers.fields[field].zero_()
            assert buffers.view(batch)[field].tolist() == [1] * batch


# Rule 3: the batch of every dummy run is a multiple of what every axis divides.


@pytest.mark.parametrize("batch", [1, 11, 13, 18])
def test_a_batch_that_is_not_rounded_is_refused(batch: int) -> None:
    buffers = reserved(replace(SMALL, max_batch=24, max_tokens=24, multiple=12))
    with pytest.raises(CapacityError, match=f"multiple of 12, got {batch}"):
        buffers.view(batch)


# Adoption.


def test_a_view_past_the_largest_batch_is_refused_where_slicing_would_truncate() -> None:
    buffers = reserved(SMALL)
    assert buffers.fields["seq_lens"][:5].shape[0] == 4, "torch gives fewer rows without a word"
    with pytest.raises(CapacityError, match="hold 4 requests, 5 asked"):
        buffers.view(5)


def test_adopted_buffers_are_the_servers_own_and_never_copied() -> None:
    owner = live(FULL)
    view = adopt(FULL, owner).view(3)
    assert len(view) == len(decode_specs(FULL))
    for name, tensor in view.items():
        proxy = name.removeprefix("pp_proxy_tensors.")
        whole = owner.pp_proxy_tensors[proxy] if proxy != name else getattr(owner, name)
        assert tensor.data_ptr() == whole.data_ptr(), name


def test_proxies_may_be_attributes_as_well_as_keys() -> None:
    owner = live(FULL)
    owner.pp_proxy_tensors = SimpleNamespace(**owner.pp_proxy_tensors)
    residual = adopt(FULL, owner).fields["pp_proxy_tensors.residual"]
    assert residual.data_ptr() == owner.pp_proxy_tensors.residual.data_ptr()


def test_larger_buffers_are_adopted_and_cut() -> None:
    large = live(replace(FULL, max_batch=64, max_tokens=256))
    buffers = adopt(FULL, large)
    for name, view in buffers.view(2).items():
        assert tuple(view.shape) == expected_shape(name, FULL, 2), name
    with pytest.raises(CapacityError):
        buffers.view(5)


def test_everything_that_does_not_fit_is_in_one_message() -> None:
    owner = live(
        FULL,
        positions=torch.zeros(4, dtype=torch.int32),
        input_embeds=torch.zeros(4, 7, dtype=torch.bfloat16),
        mrope_positions=torch.zeros(12, dtype=torch.int64),
        seq_lens=None,
    )
    del owner.input_ids
    del owner.pp_proxy_tensors["residual"]
    with pytest.raises(SlotError) as caught:
        adopt(FULL, owner)
    message = str(caught.value)
    for words in (
        "positions: dtype must be torch.int64, got torch.int32",
        "input_embeds: shape must be at least (4, 8), got (4, 7)",
        "mrope_positions: shape must be at least (3, 4), got (12,)",
        "seq_lens: is missing",
        "input_ids: is missing",
        "pp_proxy_tensors.residual: is missing",
    ):
        assert words in message


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(SlotError, match=r"seq_lens: shape must be at least \(4,\), got \(3,\)"):
        adopt(SMALL, live(SMALL, seq_lens=torch.ones(3, dtype=torch.int64)))


def test_no_proxies_at_all_are_missing_one_by_one() -> None:
    with pytest.raises(SlotError, match=r"hidden_states: is missing; pp_proxy_tensors\.residual: is missing"):
        adopt(FULL, live(FULL, pp_proxy_tensors=None))
