"""Start one rank of SGLang as its own launcher would, serve requests, and log what it asked its compilers for.

    python rank.py JOB EVENTS

JOB is a JSON file: arguments (the server's own), pp_rank, limit_s. EVENTS gets one JSON object a line. The rank is the
first one with this pp_rank; the others with it hold the same shapes.
"""

import contextlib
import faulthandler
import json
import logging
import os
import re
import sys
import time
from array import array
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "shared" / "stand_ins")]
import cuda_python  # noqa: E402
import cute_dsl  # noqa: E402
import deep_ep_peers  # noqa: E402
import flashinfer_tuner  # noqa: E402
import peers  # noqa: E402
import scheduler_peers  # noqa: E402
import speculation  # noqa: E402
import values  # noqa: E402

PROBLEM = re.compile(r"for <(\w+)> N=(\d+), K=(\d+), num_groups=(\d+)")
SAMPLE_TOKENS = 2
# Larger batches ask for no further kernel, and cost a second each.
MAX_REQUESTS = 512


class EventLog:
    """The lines that the process outside reads, each on disk before the next is written."""

    def __init__(self, path):
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - open as long as the process
        self._start = time.monotonic()

    def __call__(self, event, **data):
        line = {"event": event, "s": round(time.monotonic() - self._start, 2), **data}
        self._file.write(json.dumps(line) + "\n")


class ProblemLogger(logging.Handler):
    """Makes an event of each problem that SGLang logs before it warms it up."""

    def __init__(self, events):
        super().__init__()
        self._events = events

    def emit(self, record):
        match = PROBLEM.search(record.getMessage())
        if match:
            kernel, n, k, groups = match.groups()
            self._events("problem", kernel=kernel, n=int(n), k=int(k), groups=int(groups))


def main(job_path, events_path):
    job = json.loads(Path(job_path).read_text())
    events = EventLog(events_path)
    # A server that hangs prints its stacks before it is killed.
    faulthandler.dump_traceback_later(job["limit_s"], exit=True)
    replacements = values.install()
    peers.install()
    scheduler_peers.install()
    cuda_python.install()
    cute_dsl.install(events)
    flashinfer_tuner.install(events)
    deep_ep_peers.install()
    scheduler = start(job, events)
    events("up")
    script = Script(scheduler, waves(scheduler), events)
    scheduler.request_receiver = script
    with contextlib.suppress(Finished):
        scheduler.run_event_loop()
    events("done", peak_bytes=peak_bytes())
    del replacements
    # At an orderly exit the server's threads would wait for peers.
    sys.stdout.flush()
    os._exit(0)


def start(job, events):
    """The scheduler of this rank, started as SGLang's scheduler process starts it."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
    from sglang.srt.server_args import PortArgs, prepare_server_args
    from sglang.srt.utils import configure_logger

    try:
        arguments = prepare_server_args(job["arguments"])
    except SystemExit as refused:
        # argparse has printed the reason on standard error.
        events("refused")
        raise refused
    events("layout", tp=arguments.tp_size, pp=arguments.pp_size, ep=arguments.ep_size, dp=arguments.dp_size)
    world_rank = spawn_world_rank(arguments, tp_rank=0, pp_rank=job["pp_rank"])
    ranks = SpawnRanks(world_rank=world_rank, dp_rank=0 if arguments.dp_size > 1 else None, gpu_id=0)
    ports = PortArgs.init_new(arguments)
    publish(arguments, role="scheduler", ranks=ranks)
    configure_logger(arguments)
    logging.getLogger("sglang.srt.layers.deep_gemm_wrapper.compile_utils").addHandler(ProblemLogger(events))
    speculation.install()
    scheduler = Scheduler(arguments, ports)
    if arguments.pp_size > 1:
        config = scheduler.model_config
        scheduler_peers.play_neighbours(scheduler, config.hidden_size, config.dtype)
    return scheduler


def waves(scheduler):
    """The requests to serve, wave by wave: each wave is (prompt tokens, new tokens, requests).

    First every power of two of requests that a decode step may hold, then single prompts up to one that fills a prefill
    chunk and begins another.
    """
    max_requests = min(max(1, scheduler.max_running_requests), MAX_REQUESTS)
    requests = [1 << power for power in range(max_requests.bit_length())]
    chunk = scheduler.chunked_prefill_size or 0
    context = scheduler.model_config.context_len - SAMPLE_TOKENS - 1
    long_prompts = [min(tokens, context) for tokens in (64, chunk // 2, chunk + 64) if tokens > 0]
    return [(4, SAMPLE_TOKENS, count) for count in requests] + [(tokens, SAMPLE_TOKENS, 1) for tokens in long_prompts]


class Script:
    """The request receiver: hands out the next wave when the server is idle, and ends the loop after the last."""

    def __init__(self, scheduler, waves, events):
        self._scheduler = scheduler
        self._waves = waves
        self._events = events
        self._receiver = scheduler.request_receiver
        self._served = 0
        self._count = 0
        self._total = len(waves)
        self._log_batches()

    def __getattr__(self, name):
        return getattr(self._receiver, name)

    def recv_requests(self, local_reqs=None):
        if not self._scheduler.is_fully_idle():
            return []
        if not self._waves:
            raise Finished
        tokens, new, count = self._waves.pop(0)
        self._events("wave", done=self._total - len(self._waves), total=self._total, tokens=tokens, requests=count)
        return [self._request(tokens, new) for _ in range(count)]

    def _request(self, tokens, new):
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        self._count += 1
        sampling = SamplingParams(max_new_tokens=new, temperature=0, ignore_eos=True)
        sampling.normalize(None)
        vocabulary = self._scheduler.model_config.vocab_size
        # No two prompts share a prefix, so the prefix cache never applies.
        prompt = array("q", [(self._count * 7919 + position) % vocabulary for position in range(tokens)])
        return TokenizedGenerateReqInput(
            rid=f"request-{self._count}",
            input_text=None,
            input_ids=prompt,
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
        )

    def _log_batches(self):
        run = self._scheduler.run_batch

        def run_batch(batch, *arguments, **options):
            result = run(batch, *arguments, **options)
            self._events(
                "batch", mode=batch.forward_mode.name, requests=len(batch.reqs), tokens=batch.extend_num_tokens or 0
            )
            return result

        self._scheduler.run_batch = run_batch


class Finished(BaseException):
    """Every wave was served."""


def peak_bytes():
    """Peak resident memory of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
