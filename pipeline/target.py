"""What a target GPU is, in the words that the virtual GPU, nvcc and DeepGEMM use for it."""

from __future__ import annotations

from dataclasses import dataclass

MISSING_FACT = 0
FAMILY_ARCH_SINCE = (12, 9)


@dataclass(kw_only=True, slots=True)
class Target:
    """The GPU that will serve; it need not be present here."""

    name: str = ""
    """Short name, part of the default output directory."""
    product: str = ""
    """What the driver calls the device, e.g. NVIDIA H200; entered in tactic files."""
    compute_capability: str = "9.0"
    """major.minor as nvidia-smi prints it."""
    num_sms: int = MISSING_FACT
    """Streaming multiprocessors; a template argument of every DeepGEMM kernel."""
    l2_bytes: int = MISSING_FACT
    """L2 cache size."""
    shared_bytes_per_block: int = MISSING_FACT
    """Largest dynamic shared memory one block may opt in to."""
    shared_bytes_per_sm: int = MISSING_FACT
    """Shared memory of one multiprocessor."""
    memory_bytes: int = MISSING_FACT
    """Device memory; decides a server's default chunk and batch sizes."""

    @property
    def major_minor(self) -> tuple[int, int]:
        """The compute capability as two numbers."""
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)

    @property
    def sm(self) -> int:
        """The architecture number in a cubin's header, e.g. 90."""
        major, minor = self.major_minor
        return 10 * major + minor

    @property
    def min_nvcc(self) -> tuple[int, int]:
        """Oldest nvcc release that compiles for this target (family targets such as sm_100f came with 12.9)."""
        return FAMILY_ARCH_SINCE if self.major_minor >= (10, 0) else (12, 3)

    def config_errors(self) -> list[str]:
        """What is wrong with these facts, one line each; empty when nothing is."""
        errors = [
            f"target.{field} must be above 0, got {getattr(self, field)}; see conf/target/h200.yaml"
            for field in ("num_sms", "l2_bytes", "shared_bytes_per_block", "shared_bytes_per_sm", "memory_bytes")
            if getattr(self, field) <= 0
        ]
        parts = self.compute_capability.split(".")
        if len(parts) != 2 or not all(part.isdigit() for part in parts):
            errors.append(f"target.compute_capability must be major.minor, got {self.compute_capability!r}")
        elif self.major_minor < (9, 0):
            errors.append(f"target.compute_capability must be at least 9.0 for DeepGEMM, got {self.compute_capability}")
        return errors

    def environment(self) -> dict[str, str]:
        """The variables that the two shared objects read."""
        major, minor = self.major_minor
        return {
            "VGPU_NAME": self.product,
            "VGPU_CC_MAJOR": str(major),
            "VGPU_CC_MINOR": str(minor),
            "VGPU_NUM_SMS": str(self.num_sms),
            "VGPU_L2_BYTES": str(self.l2_bytes),
            "VGPU_MEMORY_BYTES": str(self.memory_bytes),
            "VGPU_SHARED_BYTES_PER_BLOCK": str(self.shared_bytes_per_block),
            "VGPU_SHARED_BYTES_PER_SM": str(self.shared_bytes_per_sm),
        }
