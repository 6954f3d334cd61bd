"""Where SGLang's caches lie below SGLANG_CACHE_DIR."""

from __future__ import annotations

from pipeline.servers.shared.caches import Caches
from pipeline.servers.shared.flashinfer_provider import MODULES

CACHES = Caches(
    folder="sglang",
    patterns={
        "flashinfer": MODULES,
        "triton": "triton/*/*.cubin",
        "triton_launchers": "triton/*/*.so",
        "sglang_jit": "jit/*/*/*/*/*.so",
        "tilelang": "tilelang/*/*/kernels/*/executable.so",
        "inductor": "inductor/fxgraph/*/*/*",
    },
    # SGLang's own modules do not follow SGLANG_CACHE_DIR.
    variables={"SGLANG_CACHE_DIR": ".", "SGLANG_JIT_CACHE_DIR": "jit"},
)
