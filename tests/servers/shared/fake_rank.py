"""Stands where inside/rank.py stands: reports what a server would report, as its arguments say, and fills its caches.

--stages N        pipeline ranks of the layout
--refuse          refuse the arguments, as argparse does
--crash           end with a traceback after the first problem
--hang            serve nothing until the time is up
--unanswered NAME meet a function that the virtual GPU does not answer
--compile         call nvcc for a module that no cache holds
--linger          stay long enough after the requests for progress to be read
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# pipeline/servers/shared/start.py reads the events this often.
POLL_S = 0.5
MODULE = ".cache/flashinfer/0.7.2/90a/cached_ops/norm/norm.so"


def main(job_path: str, events_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    faulthandler.dump_traceback_later(job["limit_s"], exit=True)
    options = parse(job["arguments"])

    def emit(event: str, **data: Any) -> None:
        with Path(events_path).open("a") as events:
            events.write(json.dumps({"event": event, "s": 0.5, **data}) + "\n")

    start(options, emit)
    if job["pp_rank"] == 0:
        emit("problem", kernel="GEMM_NT_F8F8BF16", n=36864, k=7168, groups=1)
    fill_caches(options.compile)
    for kernel in ("norm.Norm", "delta.Rule", "delta.Rule"):
        emit("cute_dsl", kernel=kernel)
    for key in ("mm ((1, 64),)", "mm ((2, 64),)", "mm ((1, 64),)"):
        emit("autotune", key=key)
    emit("wave", done=1, total=1, tokens=4, requests=2)
    if options.linger:
        time.sleep(3 * POLL_S)
    emit("batch", mode="EXTEND", requests=2, tokens=8)
    emit("batch", mode="DECODE", requests=2, tokens=8)
    emit("done", peak_bytes=1 << 20)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=1)
    for flag in ("--refuse", "--crash", "--hang", "--compile", "--linger"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--unanswered")
    return parser.parse_known_args(arguments)[0]


def start(options: argparse.Namespace, emit: Callable[..., None]) -> None:
    """Up to the first problem, or to whatever goes wrong."""
    if options.refuse:
        emit("refused")
        sys.stderr.write("usage: a server\na server: error: unrecognized arguments: --bogus\n")
        sys.exit(2)
    emit("layout", tp=1, pp=options.stages, ep=1, dp=1)
    emit("problem", kernel="GEMM_NT_F8F8BF16", n=2112, k=7168, groups=1)
    if options.unanswered:
        sys.stderr.write(f"virtual GPU: {options.unanswered} is not answered\n")
        raise RuntimeError("CUDA error: operation not supported")
    if options.crash:
        raise RuntimeError("the weights are lost")
    if options.hang:
        time.sleep(60)


def fill_caches(compiles_again: bool) -> None:
    """A stub in DeepGEMM's cache, and a module of FlashInfer's unless its cache has it."""
    stub = Path(os.environ["FAKE_DG_CACHE_DIR"]) / "cache" / "gemm.a"
    if not stub.exists():
        stub.mkdir(parents=True)
        (stub / "kernel.cu").write_text("source")
        (stub / "kernel.cubin").write_text("PREHEAT-STUB\n-O3\n")
    module = Path(os.environ["FAKE_CACHE_DIR"]) / MODULE
    if compiles_again or not module.exists():
        subprocess.run(["nvcc", "--shared", "norm.cu"], check=False)
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("module")


if __name__ == "__main__":
    main(*sys.argv[1:])
