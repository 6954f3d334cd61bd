"""Layouts that several tests of SGLang's rules use."""

from __future__ import annotations

from pipeline.workload.parallel import A2A, Parallel

TP8 = Parallel(tp=8)
TP4 = Parallel(tp=4)
EP8 = Parallel(tp=8, ep=8)


def behind(backend: A2A) -> Parallel:
    """Eight ranks behind a backend; pplx is for attention data parallelism only."""
    return Parallel(tp=8, attn_dp=2 if backend is A2A.pplx else 1, moe_a2a_backend=backend)
