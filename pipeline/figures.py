"""The sections of report.json: one class for what each stage reports. None means not measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.engine.figures import Figures


@dataclass(kw_only=True)
class PlanFigures(Figures):
    """What follows from the recipe."""

    section: ClassVar[str] = "plan"
    problems: int | None = None
    ranks: int | None = None
    not_deepgemm: int | None = None
    rules: list[str] | None = None
    """Which rules were chosen by the server's version."""
    no_rules: str | None = None
    """Why nothing was derived and only the server is asked."""


@dataclass(kw_only=True)
class ArenaFigures(Figures):
    """The one allocation."""

    section: ClassVar[str] = "buffers"
    arena_bytes: int | None = None
    sum_of_stage_bytes: int | None = None
    """What the phases would allocate apart."""


@dataclass(kw_only=True)
class MemoryFigures(Figures):
    """What happened to memory after the one allocation."""

    section: ClassVar[str] = "buffers"
    allocations_after: int | None = None
    """Bytes that stages allocated although they promised not to."""
    not_in_arena: dict[str, int] | None = None
    """Bytes that libraries take for themselves, by library."""
    peak_device_bytes: int | None = None


@dataclass(kw_only=True)
class ForwardFigures(Figures):
    """The dummy forward."""

    section: ClassVar[str] = "forward"
    gemms: int | None = None
    batch: int | None = None
    """Requests of a decode-shaped batch."""
    extend_tokens: int | None = None
    """Tokens of a prefill-shaped batch."""
    graphs_replayed: int | None = None
    compiled: int | None = None
    """Kernels that the published cache lacked."""


@dataclass(kw_only=True)
class AutotuneFigures(Figures):
    """FlashInfer's tactics."""

    section: ClassVar[str] = "autotune"
    ops: list[dict[str, Any]] | None = None
    tactics: int | None = None
    reused: int | None = None


@dataclass(kw_only=True)
class AskFigures(Figures):
    """What the installed server asked its compilers for."""

    section: ClassVar[str] = "server"
    version: str | None = None
    arguments: list[str] | None = None
    starts: list[str] | None = None
    asked_again: bool | None = None
    """False when an earlier run's answer was taken."""
    problems: int | None = None
    rules_only: list[dict[str, str]] | None = None
    server_only: list[dict[str, str]] | None = None
    caches: dict[str, dict[str, int]] | None = None
    cute_dsl: list[str] | None = None
    """Kernels that every start compiles again."""
    autotune_keys: list[str] | None = None
    """What FlashInfer would tune on the card."""
    seconds_longest_start: float | None = None
    peak_bytes: int | None = None
    tokens_answered: int | None = None
    faults: list[str] | None = None
    """Why the list is incomplete."""


@dataclass(kw_only=True)
class SweepFigures(Figures):
    """Discovery, farm and publishing."""

    section: ClassVar[str] = "sweep"
    problems: int | None = None
    m_values: int | None = None
    keys: int | None = None
    compiled: int | None = None
    reused: int | None = None
    failed: int | None = None
    missing: int | None = None
    errors: dict[str, str] | None = None
    """The compiler's message for each kernel that failed."""
    not_in_library: list[str] | None = None
    """What the installed deep_gemm lacks."""
    rules_only_keys: list[str] | None = None
    server_only_keys: list[str] | None = None
    published: int | None = None
    """Entries that the output did not have."""
    kept: int | None = None
    """Entries that it had, and that are good."""
    replaced: list[str] | None = None
    """Entries that it had, and that were damaged."""
    discovery_s: float | None = None
    discovery_reused: bool | None = None
    discovery_peak_bytes: int | None = None
    farm_wall_s: float | None = None
    farm_cpu_s: float | None = None
    farm_jobs: int | None = None
    nvcc: str | None = None


@dataclass(kw_only=True)
class VerifyFigures(Figures):
    """What was checked, and what the target GPU confirmed."""

    section: ClassVar[str] = "verify"
    coverage_m_values: int | None = None
    coverage_compiles: int | None = None
    cubins_checked: int | None = None
    cubins_loaded: int | None = None
    numerics_checked: int | None = None
    without_reference: int | None = None
    """Kernels that were loaded and not executed."""
    max_relative_error: float | None = None
    guards_ok: bool | None = None
    addresses_ok: bool | None = None
    seq_lens_ok: bool | None = None
    batch_ok: bool | None = None
    seconds_coverage: float | None = None
    hardware_skipped: str | None = None
    tactics_replayed: int | None = None
    real_keys: int | None = None
    seconds_real_discovery: float | None = None
    faults: list[str] = field(default_factory=list[str])


@dataclass(kw_only=True)
class ProofFigures(Figures):
    """The server, started again with every compiler hidden."""

    section: ClassVar[str] = "server"
    proof_starts: int | None = None
    proof_tokens_answered: int | None = None
    proof_seconds: float | None = None
    proof_missing: dict[str, list[str]] | None = None
    """What each cache lacked."""
    proof_compiler_calls: list[str] | None = None
