"""Where the CUDA headers are: in pip's nvidia wheels, else in a toolkit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pipeline.engine.errors import HostError

NEEDED = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h")
CUBLAS = ("cublas_api.h", "cublasLt.h")
NCCL = ("nccl.h",)


def nvidia_folders() -> list[Path]:
    """The folders of the `nvidia` package, which the CUDA wheels share."""
    spec = find_spec("nvidia")
    return [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []


def find_headers(cuda_home: Path | None = None) -> Path:
    """An include directory with the headers of runtime and driver; HostError when there is none."""
    candidates = _candidates(cuda_home)
    for folder in candidates:
        if all((folder / name).exists() for name in NEEDED):
            return folder
    looked = ", ".join(map(str, candidates)) or "nowhere"
    raise HostError(
        f"no CUDA headers ({', '.join(NEEDED)}) in {looked}; "
        "pip install -r requirements.txt brings them, or set toolkit.cuda_home"
    )


def find_optional_headers(names: tuple[str, ...], cuda_home: Path | None = None) -> Path | None:
    """An include directory with the headers `names` (CUBLAS, NCCL), which a toolkit may come without; else None."""
    folders = [root / "nccl" / "include" for root in nvidia_folders()] + _candidates(cuda_home)
    return next((folder for folder in folders if all((folder / name).exists() for name in names)), None)


def _candidates(cuda_home: Path | None) -> list[Path]:
    candidates = [root / "cu13" / "include" for root in nvidia_folders()]
    if cuda_home is not None:
        candidates += [cuda_home / "include", cuda_home / "targets" / "x86_64-linux" / "include"]
    return candidates
