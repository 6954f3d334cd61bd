"""From a runner's buffers to the set that a dummy run needs, whoever owns the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.buffers.arena import Arena
from pipeline.buffers.decode_set import SEQ_LEN_FILL, DecodeField, DecodeSize, FieldSpec, Rows, decode_fields
from pipeline.buffers.layout import BufferSpec
from pipeline.engine.errors import CapacityError, SlotError


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """The fields of one decode set by name; an absent field is not in the mapping."""

    size: DecodeSize
    fields: Mapping[str, Tensor]

    def view(self, batch: int) -> dict[str, Tensor]:
        """Every present field, cut to a dummy run of `batch` requests. Nothing is allocated, nothing is padded.

        Refills the sequence lengths, which a dummy run must never see as zero. Raises CapacityError past the
        largest batch and for a batch that is not a multiple of the layout's alignment.
        """
        if batch > self.size.max_batch or batch < 1:
            raise CapacityError(f"the {self.size.kind.name} buffers hold {self.size.max_batch} requests, {batch} asked")
        if batch % self.size.multiple != 0:
            raise CapacityError(f"a dummy run's batch must be a multiple of {self.size.multiple}, got {batch}")
        self.fields[DecodeField.SEQ_LENS].fill_(SEQ_LEN_FILL)
        self.fields[DecodeField.SEQ_LENS_CPU].fill_(SEQ_LEN_FILL)
        return {spec.field.value: self._cut(spec, batch) for spec in decode_fields(self.size)}

    def _cut(self, spec: FieldSpec, batch: int) -> Tensor:
        whole = self.fields[spec.field]
        match spec.rows:
            case Rows.FIXED:
                return whole
            case Rows.REQUESTS:
                num_rows = batch
            case Rows.TOKENS:
                num_rows = self.size.tokens_of(batch)
            case Rows.MASK:
                num_rows = self.size.mask_rows_of(batch)
        return whole.narrow(spec.buffer.rows_axis, 0, num_rows)


def from_arena(size: DecodeSize, arena: Arena) -> DecodeBuffers:
    """The set that `allocate` reserved."""
    return DecodeBuffers(size, {spec.field.value: arena[spec.buffer.name] for spec in decode_fields(size)})


def adopt(size: DecodeSize, owner: Any) -> DecodeBuffers:
    """A server's live buffers, read from attributes (or keys) of `owner`; checked, never copied.

    Raises SlotError for a missing field, a wrong dtype, or a shape below what the size asks.
    """
    fields: dict[str, Tensor] = {}
    misfits: list[str] = []
    for spec in decode_fields(size):
        value = _attribute(owner, spec.field)
        if (misfit := _misfit(value, spec.buffer)) is None:
            fields[spec.field.value] = value
        else:
            misfits.append(f"{spec.field}: {misfit}")
    if misfits:
        raise SlotError("the buffers handed over do not fit: " + "; ".join(misfits))
    return DecodeBuffers(size, fields)


def _misfit(value: Any, spec: BufferSpec) -> str | None:
    """Why the value cannot stand for the buffer; None where it can."""
    dtype = getattr(torch, spec.dtype)
    if not isinstance(value, Tensor):
        return "is missing"
    if value.dtype is not dtype:
        return f"dtype must be {dtype}, got {value.dtype}"
    shape = tuple(value.shape)
    if len(shape) != len(spec.shape) or any(have < need for have, need in zip(shape, spec.shape, strict=True)):
        return f"shape must be at least {spec.shape}, got {shape}"
    return None


def _attribute(owner: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        owner = owner.get(part) if isinstance(owner, Mapping) else getattr(owner, part, None)
    return owner
