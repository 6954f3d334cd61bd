"""How SGLang is started on the virtual GPU: arguments, variables, and how one rank runs without its peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.servers.sglang.arguments import server_arguments
from pipeline.servers.sglang.caches import CACHES
from pipeline.servers.sglang.flags import WITHOUT_GRAPHS, SglangFlags
from pipeline.servers.shared.caches import Caches
from pipeline.workload.hf_config import Model, read_config
from pipeline.workload.parallel import Parallel


@dataclass(frozen=True, slots=True)
class AskableSglang:
    """Implements AskableServer of pipeline/servers/protocol.py."""

    distributions: tuple[str, ...] = (
        "sglang",
        "torch",
        "triton",
        "flashinfer-python",
        "sgl-deep-gemm",
        "sglang-kernel",
        "apache-tvm-ffi",
    )
    tested: tuple[int, int, int] = (0, 5, 23)
    requirements: str = "requirements-sglang.txt"
    script: Path = Path(__file__).parent / "inside" / "rank.py"
    announced_kernels: frozenset[str] = frozenset(
        {
            "GEMM_NT_F8F8BF16",
            "GEMM_NT_BF16",
            "GROUPED_GEMM_NT_F8F8BF16_MASKED",
            "GROUPED_GEMM_NT_F8F8BF16_CONTIG",
            "GROUPED_GEMM_NT_BF16_MASKED",
            "GROUPED_GEMM_NT_BF16_CONTIG",
            "GROUPED_GEMM_NT_F8F4BF16_MASKED",
            "GROUPED_GEMM_NT_F8F4BF16_CONTIG",
        }
    )
    caches: Caches = CACHES
    variable_prefix: str = "SGLANG_"

    def variants(self, flags: SglangFlags, parallel: Parallel, checkpoint: Path) -> dict[str, list[str]]:
        """With the flags as they are, and once more without CUDA graphs, where SGLang launches other kernels."""
        arguments = server_arguments(flags, parallel, checkpoint)
        as_configured = {"as configured": arguments}
        if flags.disable_cuda_graph:
            return as_configured
        return as_configured | {"without graphs": [*arguments, *WITHOUT_GRAPHS]}

    def variables(self, model: Model, flags: SglangFlags, parallel: Parallel) -> dict[str, str]:
        variables = flags.variables()
        config, _ = read_config(model)
        if config.get("expert_dtype") == "fp8":
            # SGLang reads this from the weights, and the checkpoint has none.
            variables["SGLANG_DSV4_FP4_EXPERTS"] = "0"
        if parallel.layer_partition:
            variables["SGLANG_PP_LAYER_PARTITION"] = ",".join(map(str, parallel.layer_partition))
        return variables

    def without_peers(self, virtual_gpu: Path) -> Mapping[str, str]:
        return {
            "SGLANG_NCCL_SO_PATH": str(virtual_gpu / "libvnccl.so"),
            # No peer reads the queue.
            "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "false",
        }
