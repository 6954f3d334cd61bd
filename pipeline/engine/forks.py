"""Share work out to forks of one process, so that what it imported is imported once.

Importing torch takes longer than a hundred thousand launches, and processes that import it side by side wait for each
other (3.6 s for one, 6.3 s for sixteen on the H200 machine; benchmarks/RESULTS.md).
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

FORK = multiprocessing.get_context("fork")
Work = Callable[[Any, Callable[[int], None]], dict[str, Any]]


def run_in_forks(work: Work, shares: Sequence[Any], folder: Path, total: int) -> list[dict[str, Any]]:
    """`work(share, say_done)` of each share in a fork of its own; the results in the order of the shares.

    No CUDA context may exist yet: a fork could not use it. Progress is the sum of what the forks say they have done, at
    most `total`, as a JSON line {"launched": ..., "total": ...}. SystemExit when a fork fails; the others are ended.
    """
    done = FORK.RawArray("q", len(shares))

    def run(number: int) -> None:
        def say_done(count: int) -> None:
            done[number] = count
            print(json.dumps({"launched": min(sum(done), total), "total": total}), flush=True)

        (folder / f"share-{number}.json").write_text(json.dumps(work(shares[number], say_done)))

    forks = [FORK.Process(target=run, args=(number,), daemon=True) for number in range(len(shares))]
    for fork in forks:
        fork.start()
    _wait_for_all(forks)
    return [json.loads((folder / f"share-{number}.json").read_text()) for number in range(len(shares))]


def _wait_for_all(forks: Sequence[BaseProcess]) -> None:
    running = {fork.sentinel: fork for fork in forks}
    while running:
        for sentinel in wait(list(running)):
            # Only sentinels were given, each the key of its fork.
            ended = running.pop(int(sentinel))  # pyright: ignore[reportArgumentType]
            ended.join()
            if ended.exitcode != 0:
                for fork in running.values():
                    fork.kill()
                raise SystemExit(f"one of {len(forks)} workers ended with code {ended.exitcode}")
