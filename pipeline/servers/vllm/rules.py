"""vLLM, read from the released wheels 0.11.0 to 0.33.0: which linear reaches DeepGEMM, and at which M.

Paths in the rules are inside the package vllm of 0.33; layout.py says how its sizes are those of parallel.*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.servers.rules import Use, Widths
from pipeline.servers.shared import shards
from pipeline.servers.shared.problems import Problem
from pipeline.servers.shared.schemes import with_head, with_schemes
from pipeline.servers.vllm import batches, dense, layout, moe, other_kernels, refusals
from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.servers.vllm.schemes import HEAD, scheme_of
from pipeline.servers.vllm.versions import Version, changes_up_to, version_of
from pipeline.workload.linears import Linear, NotDeepGemm, Refusal, Role, block_errors


@dataclass(frozen=True, slots=True)
class VllmRules(VllmDeployment):
    """The rules of pipeline/servers/rules.py for vLLM."""

    @property
    def version(self) -> Version:
        """The release whose rules hold."""
        return version_of(self.server.version)

    @property
    def used(self) -> tuple[str, ...]:
        changes = changes_up_to(self.version)
        return tuple(f"vllm from {'.'.join(map(str, since))}: {change}" for since, change in changes)

    @property
    def chunk(self) -> int:
        return batches.chunk(self, self.version)

    @property
    def decode_batch(self) -> int:
        return batches.decode_batch(self)

    @property
    def eager_batch(self) -> int:
        return self.server.max_running_requests or self.decode_batch

    @property
    def tokens_per_request(self) -> int:
        return self.server.tokens_per_request

    @property
    def has_cuda_graphs(self) -> bool:
        return not self.server.disable_cuda_graph

    @property
    def batch_multiple(self) -> int:
        """Sequence-parallel experts pad to the tensor-parallel size."""
        return self.parallel.attn_tp if layout.is_sequence_parallel(self) else 1

    @property
    def counts_unpadded_tokens(self) -> bool:
        """That field is SGLang's."""
        return False

    def masked_rows(self, tokens: int) -> int | None:
        return tokens * self.parallel.attn_dp if moe.is_batched(self) else None

    def refusals(self) -> list[Refusal]:
        return refusals.refusals(self)

    def split(self, num_layers: int) -> list[int]:
        return layout.split_layers(num_layers, self.parallel.pp)

    def widths(self) -> Widths:
        return layout.widths(self, self.version)

    @property
    def runs_draft(self) -> bool:
        return self.server.mtp

    def linears(self, layers: Sequence[int], *, draft: bool = False) -> list[Linear]:
        widths = self.widths()
        if draft:
            return with_schemes(shards.draft_linears(self.facts, widths), partial(scheme_of, self, draft=True))
        return with_schemes(shards.layer_linears(self.facts, widths, layers), partial(scheme_of, self))

    def cut_blocks(self, linear: Linear) -> list[str]:
        """It refuses what SGLang refuses (quantization/utils/fp8_utils.py validate_fp8_block_shape)."""
        block = linear.scheme.block
        return [] if block is None else block_errors(linear, block, last_part_exempt=True)

    @property
    def routes_per_token(self) -> int:
        """Shared experts are never fused on CUDA."""
        return 0 if self.facts.experts is None else self.facts.experts.top_k

    @property
    def absorbs_kv_up(self) -> bool:
        return False

    @property
    def nothing_to_autotune(self) -> str | None:
        """It tunes whatever FlashInfer operation its dummy run meets (warmup/kernel_warmup.py)."""
        return None

    def reason(self, linear: Linear) -> str | None:
        if linear.name in self.server.served_elsewhere:
            return "named in server.served_elsewhere"
        if self.server.use_deep_gemm is False:
            return "server.use_deep_gemm=false (VLLM_USE_DEEP_GEMM=0)"
        if linear.role is Role.EXPERTS:
            return moe.reason(self, self.version, linear.scheme)
        return dense.reason(self, self.version, linear)

    def uses(self, linear: Linear) -> list[Use]:
        if linear.role is Role.EXPERTS:
            return moe.uses(self, self.version, linear, self.chunk)
        return [dense.use(self, self.version, linear, self.chunk)]

    def standalone_problems(self, layers: Sequence[int], ranks: Sequence[int], *, is_last: bool) -> list[Problem]:
        """The last place of the pipeline launches what the others do."""
        return other_kernels.standalone_problems(self, layers, ranks, chunk=self.chunk, decode_batch=self.decode_batch)

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        entries = self.facts.not_for_deepgemm() + dense.not_for_deepgemm(self, self.version)
        return with_head(entries, scheme_of(self, HEAD, self.facts.num_layers - 1))
