"""From a runner's buffers to the set that a dummy run needs, whoever owns the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.buffers.arena import Arena
from pipeline.buffers.decode_set import PREFIX, SEQ_LEN_FILL, DecodeSize, decode_specs
from pipeline.engine.errors import CapacityError, SlotError

# Fields by their axis: those of a request, and those of a token (or of a token and a request together).
REQUEST_FIELDS = (
    "req_pool_indices",
    "seq_lens",
    "seq_lens_cpu",
    "encoder_lens",
    "mamba_track_indices",
    "mamba_track_mask",
)
TOKEN_FIELDS = (
    "input_ids",
    "input_embeds",
    "out_cache_loc",
    "positions",
    "mrope_positions",
    "next_token_logits_buffer",
)
PROXY_FIELD = "pp_proxy_tensors."


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """The fields of one decode set by name; an absent field is not in the mapping."""

    size: DecodeSize
    fields: Mapping[str, torch.Tensor]

    def view(self, batch: int) -> dict[str, torch.Tensor]:
        """Every present field, cut to a dummy run of `batch` requests. Nothing is allocated, nothing is padded.

        Refills the sequence lengths, which a dummy run must never see as zero. Raises CapacityError past the
        largest batch and for a batch that is not a multiple of the layout's alignment.
        """
        if batch > self.size.max_batch or batch < 1:
            raise CapacityError(f"the {self.size.kind.name} buffers hold {self.size.max_batch} requests, {batch} asked")
        if batch % self.size.multiple != 0:
            raise CapacityError(f"a dummy run's batch must be a multiple of {self.size.multiple}, got {batch}")
        self.fields["seq_lens"].fill_(SEQ_LEN_FILL)
        self.fields["seq_lens_cpu"].fill_(SEQ_LEN_FILL)
        tokens = batch * self.size.tokens_per_request
        return {name: self._cut(name, whole, batch, tokens) for name, whole in self.fields.items()}

    def _cut(self, name: str, whole: torch.Tensor, batch: int, tokens: int) -> torch.Tensor:
        if name in REQUEST_FIELDS:
            return whole.narrow(0, 0, batch)
        if name in TOKEN_FIELDS or name.startswith(PROXY_FIELD):
            return whole.narrow(1 if name == "mrope_positions" else 0, 0, tokens)
        if name == "custom_mask":
            return whole.narrow(0, 0, (batch * SEQ_LEN_FILL + tokens) * self.size.tokens_per_request)
        return whole


def from_arena(size: DecodeSize, arena: Arena) -> DecodeBuffers:
    """The set that `allocate` reserved."""
    names = [spec.name for spec in decode_specs(size)]
    return DecodeBuffers(size, {name.removeprefix(PREFIX): arena[name] for name in names})


def adopt(size: DecodeSize, owner: Any) -> DecodeBuffers:
    """A server's live buffers, read from attributes (or keys) of `owner`; checked, never copied.

    Raises SlotError for a missing field, a wrong dtype, or a shape below what the size asks.
    """
    fields: dict[str, torch.Tensor] = {}
    problems: list[str] = []
    for spec in decode_specs(size):
        name = spec.name.removeprefix(PREFIX)
        found = _attribute(owner, name)
        wanted = getattr(torch, spec.dtype)
        if not isinstance(found, torch.Tensor):
            problems.append(f"{name}: is missing")
        elif found.dtype is not wanted:
            problems.append(f"{name}: dtype must be {wanted}, got {found.dtype}")
        elif len(found.shape) != len(spec.shape) or any(a < b for a, b in zip(found.shape, spec.shape, strict=False)):
            problems.append(f"{name}: shape must be at least {spec.shape}, got {tuple(found.shape)}")
        else:
            fields[name] = found
    if problems:
        raise SlotError("the buffers handed over do not fit: " + "; ".join(problems))
    return DecodeBuffers(size, fields)


def _attribute(owner: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        owner = owner.get(part) if isinstance(owner, Mapping) else getattr(owner, part, None)
    return owner
