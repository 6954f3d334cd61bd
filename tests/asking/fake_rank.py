"""Stands where inside/rank.py stands: says what a server would say, as its arguments tell it, and fills its caches.

--stages N        pipeline stages of the layout
--refuse          refuse the arguments, as argparse does
--crash           end with a traceback after the first problem
--hang            serve nothing until the time is up
--unanswered NAME meet a function that the virtual GPU does not answer
--compile         call nvcc for a module that no cache holds
"""

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main(job_path, events_path):
    job = json.loads(Path(job_path).read_text())
    faulthandler.dump_traceback_later(job["limit_s"], exit=True)
    wanted = argparse.ArgumentParser()
    wanted.add_argument("--stages", type=int, default=1)
    for flag in ("--refuse", "--crash", "--hang", "--compile"):
        wanted.add_argument(flag, action="store_true")
    wanted.add_argument("--unanswered")
    told, _ = wanted.parse_known_args(job["arguments"])

    def say(event, **data):
        with Path(events_path).open("a") as events:
            events.write(json.dumps({"event": event, "s": 0.5, **data}) + "\n")

    if told.refuse:
        say("refused")
        sys.stderr.write("usage: a server\na server: error: unrecognized arguments: --bogus\n")
        sys.exit(2)
    say("layout", tp=1, pp=told.stages, ep=1, dp=1)
    say("problem", kernel="GEMM_NT_F8F8BF16", n=2112, k=7168, groups=1)
    if told.unanswered:
        sys.stderr.write(f"virtual GPU: {told.unanswered} is not answered\n")
        raise RuntimeError("CUDA error: operation not supported")
    if told.crash:
        raise RuntimeError("the weights are lost")
    if told.hang:
        time.sleep(60)
    if job["pp_rank"] == 0:
        say("problem", kernel="GEMM_NT_F8F8BF16", n=36864, k=7168, groups=1)
    stub = Path(os.environ["SGLANG_DG_CACHE_DIR"]) / "cache" / "gemm.a"
    if not stub.exists():
        stub.mkdir(parents=True)
        (stub / "kernel.cu").write_text("source")
        (stub / "kernel.cubin").write_text("PREHEAT-STUB\n-O3\n")
    module = Path(os.environ["SGLANG_CACHE_DIR"]) / ".cache/flashinfer/0.7.2/90a/cached_ops/norm/norm.so"
    if told.compile or not module.exists():
        subprocess.run(["nvcc", "--shared", "norm.cu"], check=False)
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("module")
    for kernel in ("norm.Norm", "delta.Rule", "delta.Rule"):
        say("cute_dsl", kernel=kernel)
    for key in ("mm ((1, 64),)", "mm ((2, 64),)", "mm ((1, 64),)"):
        say("autotune", key=key)
    say("wave", done=1, total=1, tokens=4, requests=2)
    say("batch", mode="EXTEND", requests=2, tokens=8)
    say("batch", mode="DECODE", requests=2, tokens=8)
    say("done", peak_bytes=1 << 20)


if __name__ == "__main__":
    main(*sys.argv[1:])
