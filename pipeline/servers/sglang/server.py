"""SGLang as a supported server."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.servers.protocol import AskableServer
from pipeline.servers.sglang.askable import AskableSglang
from pipeline.servers.sglang.flags import SglangFlags
from pipeline.servers.sglang.rules import SglangRules
from pipeline.servers.shared.legacy_quantization import resolve_whole
from pipeline.target import Target
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Sglang:
    """Implements pipeline/servers/protocol.py."""

    flags: type[SglangFlags] = SglangFlags
    deep_gemm_variable: str = "SGLANG_DG_CACHE_DIR"
    """SGLang overwrites DG_JIT_CACHE_DIR at import."""
    sweep_switch: tuple[str, str] = ("SGLANG_JIT_DEEPGEMM_PRECOMPILE", "0")
    askable: AskableServer = AskableSglang()

    def rules(self, facts: ModelFacts, parallel: Parallel, flags: SglangFlags, target: Target) -> SglangRules:
        stored = resolve_whole(facts.declared)
        return SglangRules(facts, parallel, flags, target, stored, stored)
