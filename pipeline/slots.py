"""The slots that stages meet in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.buffers.sizing import BufferPlan
from pipeline.engine.children import Children
from pipeline.engine.context import Slot
from pipeline.engine.events import Events
from pipeline.places import Places
from pipeline.recipe import Recipe
from pipeline.servers.derive import Workload
from pipeline.servers.no_rules import NoRules

if TYPE_CHECKING:
    from pipeline.buffers.adapters import DecodeBuffers
    from pipeline.buffers.arena import Arena
    from pipeline.deepgemm.compiler import Source
    from pipeline.deepgemm.discovery import Discoverer
    from pipeline.deepgemm.toolkit import Toolkit
    from pipeline.kernels.protocol import Kernels
    from pipeline.servers.shared.answer import ServerAnswer
    from pipeline.servers.shared.inquiry import Inquiry
    from pipeline.servers.shared.problems import Problem
    from pipeline.tuning.tactics import Tuned
    from pipeline.virtual_gpu.build import VirtualGpu


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
class ForwardResult:
    """What the dummy forward did and which buffers it saw."""

    num_gemms: int
    min_seq_len: int
    """The least sequence length in it."""
    batch: int
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Baked:
    """The warm cache of DeepGEMM kernels and how it came about."""

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
PLACES: Slot[Places] = Slot("places")
EVENTS: Slot[Events] = Slot("events")
CHILDREN: Slot[Children] = Slot("children")
KERNELS: Slot[Kernels] = Slot("kernels")
NO_RULES: Slot[NoRules] = Slot("no_rules")
"""With discovery=server and a recipe that the rules do not know; WORKLOAD and BUFFER_PLAN are absent then."""
WORKLOAD: Slot[Workload] = Slot("workload")
BUFFER_PLAN: Slot[BufferPlan] = Slot("buffer_plan")
RESERVED: Slot[Reserved] = Slot("reserved")
LIVE_BUFFERS: Slot[object] = Slot("live_buffers")
"""A server's own decode buffers, seeded by a caller inside that server; absent in a run of run.py."""
DECODE_BUFFERS: Slot[DecodeBuffers] = Slot("decode_buffers")
BATCH: Slot[AlignedBatch] = Slot("batch")
TOOLKIT: Slot[Toolkit] = Slot("toolkit")
VIRTUAL_GPU: Slot[VirtualGpu] = Slot("virtual_gpu")
DISCOVERER: Slot[Discoverer] = Slot("discoverer")
INQUIRY: Slot[Inquiry] = Slot("inquiry")
"""How the installed server is asked; absent with discovery=rules."""
ANSWER: Slot[ServerAnswer] = Slot("answer")
"""What it asked for."""
BAKED: Slot[Baked] = Slot("baked")
FORWARD: Slot[ForwardResult] = Slot("forward")
TACTICS: Slot[tuple[Tuned, ...]] = Slot("tactics")
PROOF: Slot[Proof] = Slot("proof")

SEEDED = (RECIPE, RECIPE_YAML, PLACES, EVENTS, CHILDREN, KERNELS)
"""Filled before the first stage."""
