"""vLLM as a supported server."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.servers.protocol import AskableServer
from pipeline.servers.shared.legacy_quantization import resolve_whole
from pipeline.servers.vllm.flags import VllmFlags
from pipeline.servers.vllm.rules import VllmRules
from pipeline.target import Target
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Vllm:
    """Implements pipeline/servers/protocol.py."""

    flags: type[VllmFlags] = VllmFlags
    deep_gemm_variable: str = "DG_JIT_CACHE_DIR"
    sweep_switch: tuple[str, str] = ("VLLM_DEEP_GEMM_WARMUP", "skip")
    askable: AskableServer | None = None

    def rules(self, facts: ModelFacts, parallel: Parallel, flags: VllmFlags, target: Target) -> VllmRules:
        stored = resolve_whole(facts.declared)
        return VllmRules(facts, parallel, flags, target, stored, stored)
