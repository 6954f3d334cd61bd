"""The slots that stages meet in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.buffers.sizing import BufferPlan
from pipeline.engine.children import Children
from pipeline.engine.context import Slot
from pipeline.engine.events import Events
from pipeline.recipe import Recipe
from pipeline.workload.derive import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.asking.layout import Asked
    from pipeline.asking.start import Starter
    from pipeline.buffers.adapters import DecodeBuffers
    from pipeline.buffers.arena import Arena
    from pipeline.deepgemm.compiler import Source
    from pipeline.deepgemm.discovery import Discoverer
    from pipeline.deepgemm.toolkit import Toolkit
    from pipeline.kernels import Kernels
    from pipeline.tuning.tactics import Shape, Tuner
    from pipeline.workload.problems import Problem


@dataclass(frozen=True, slots=True)
class Reserved:
    """The arena and where its buffers began when it was made."""

    arena: Arena
    addresses: dict[str, int]


@dataclass(frozen=True, slots=True)
class AlignedBatch:
    """The batch of every dummy run, in requests."""

    requests: int
    multiple: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """An operation whose tactics are in the tuner's file, and the shapes that they cover."""

    tuner: Tuner
    op: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """What the dummy forward did and which buffers it saw; `min_seq_len` is the least sequence length in it."""

    num_gemms: int
    min_seq_len: int
    batch: int
    fields: tuple[str, ...]
    tactics: int
    tuned: tuple[Tuned, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedServer:
    """The installed server: how it is started, and what it asked for (None in a run that only verifies)."""

    starter: Starter
    variants: dict[str, list[str]]
    """Its arguments in each way to start it."""
    variables: dict[str, str]
    """Flags of the recipe that are environment variables."""
    asked: Asked | None


@dataclass(frozen=True, slots=True)
class Baked:
    """The warm cache of DeepGEMM kernels and how it came about."""

    warm_cache: Path
    toolkit: Toolkit
    discoverer: Discoverer
    sources: list[Source]
    """The kernels' sources with their compiler arguments; empty when nothing was baked."""
    problems: tuple[Problem, ...]
    """The rules' problems that were baked; empty with discovery=server."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What verify established."""

    keys_of_problem: dict[str, int]


RECIPE: Slot[Recipe] = Slot("recipe")
RECIPE_YAML: Slot[str] = Slot("recipe_yaml")
ALLOCATED: Slot[dict[str, int | None]] = Slot("allocated")
"""Bytes that each finished stage allocated, None where that is not measured; grows while stages end."""
EVENTS: Slot[Events] = Slot("events")
CHILDREN: Slot[Children] = Slot("children")
KERNELS: Slot[Kernels] = Slot("kernels")
WORKLOAD: Slot[Workload] = Slot("workload")
BUFFER_PLAN: Slot[BufferPlan] = Slot("buffer_plan")
RESERVED: Slot[Reserved] = Slot("reserved")
DECODE_BUFFERS: Slot[DecodeBuffers] = Slot("decode_buffers")
BATCH: Slot[AlignedBatch] = Slot("batch")
FORWARD: Slot[ForwardResult] = Slot("forward")
ASKED: Slot[AskedServer] = Slot("asked")
BAKED: Slot[Baked] = Slot("baked")
PROOF: Slot[Proof] = Slot("proof")

SEEDED = (RECIPE, RECIPE_YAML, ALLOCATED, EVENTS, CHILDREN, KERNELS)
"""Filled by run.py before the first stage."""
