"""What runs inside the server's Python, run in this one: on the virtual GPU, without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.servers.sglang.askable import AskableSglang
from pipeline.servers.shared.digest import STAND_INS
from pipeline.virtual_gpu.build import VirtualGpu, build
from tests.servers.recipes import target

INSIDE = AskableSglang().script.parent


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> VirtualGpu:
    return build(target(), cache_dir=tmp_path_factory.mktemp("gpu"))


def inside(gpu: VirtualGpu, code: str) -> str:
    """Run code beside the stand-ins and SGLang's own; what it printed."""
    environment = {**os.environ, **gpu.environment(), "PYTHONPATH": f"{STAND_INS}:{INSIDE}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_small_values_are_right_and_large_ones_are_left(gpu: VirtualGpu):
    code = (
        "import torch, values; kept = values.install()\n"
        "x = torch.tensor([1.0, 2.0, 3.0], device='cuda')\n"
        "y = torch.ones(4, device='cuda'); z = torch.full((2,), 7, device='cuda')\n"
        "print((x > 1.5).tolist(), (x == x).all().item(), y.tolist(), z.tolist())\n"
        "big = torch.ones(1 << 20, device='cuda')\n"
        "print(big[:2].tolist(), (big > 0).dtype, (big > x[0]).shape)"
    )
    first, second = inside(gpu, code).split("\n")
    assert first.startswith("[False, True, True]")
    assert first.endswith("[1.0, 1.0, 1.0, 1.0] [7, 7]")
    assert second == "[0.0, 0.0] torch.bool torch.Size([1048576])"


def test_drawing_weights_comes_to_an_end(gpu: VirtualGpu):
    code = (
        "import torch, values; kept = values.install()\n"
        "x = torch.empty(1 << 20, device='cuda'); print(torch.nn.init.trunc_normal_(x, std=0.02) is x)"
    )
    assert inside(gpu, code) == "True"


def test_nothing_takes_effect_while_a_graph_is_captured(gpu: VirtualGpu):
    code = (
        "import torch, values; kept = values.install()\n"
        "x, graph = torch.zeros(4, device='cuda'), torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n    x.fill_(3)\n"
        "print(x.tolist()); x.fill_(3); print(x.tolist())"
    )
    assert inside(gpu, code).split("\n") == ["[0.0, 0.0, 0.0, 0.0]", "[3.0, 3.0, 3.0, 3.0]"]


def test_one_rank_joins_a_world_whose_other_ranks_are_played(gpu: VirtualGpu):
    code = (
        "import torch, peers; peers.install(); import torch.distributed as dist\n"
        "dist.init_process_group(backend='nccl', init_method='tcp://127.0.0.1:1', world_size=32, rank=9)\n"
        "group = dist.new_group(list(range(8, 16)), backend='gloo')\n"
        "everyone = [None] * 8; dist.all_gather_object(everyone, {'mine': 1}, group=group)\n"
        "x = torch.ones(4, device='cuda'); dist.all_reduce(x, group=group)\n"
        "dist.barrier(); dist.monitored_barrier(group)\n"
        "print(dist.get_rank(), dist.get_world_size(), dist.get_rank(group), everyone == [{'mine': 1}] * 8)"
    )
    assert inside(gpu, code) == "9 32 1 True"


def test_deep_ep_delivers_the_shapes_that_the_gemms_are_given(gpu: VirtualGpu):
    code = (
        "import torch, deep_ep_peers\n"
        "class Group:\n    def rank(self): return 0\n    def size(self): return 8\n"
        "b = deep_ep_peers.Buffer(Group(), low_latency_mode=True)\n"
        "x, ids = torch.empty(16, 7168, device='cuda'), torch.zeros(16, 8, dtype=torch.int64, device='cuda')\n"
        "(values, scales), count, handle, event, hook = b.low_latency_dispatch(x, ids, 128, 256)\n"
        "print(tuple(values.shape), tuple(scales.shape), scales.stride()[1:], tuple(count.shape))\n"
        "layout = b.get_dispatch_layout(ids, 256)\n"
        "got, _, _, each, handle, _ = b.dispatch(x, topk_idx=ids, topk_weights=ids, num_tokens_per_expert=layout[2],\n"
        "                                        expert_alignment=128)\n"
        "print(tuple(got.shape), set(each), len(each), tuple(b.combine(got, handle)[0].shape))"
    )
    first, second = inside(gpu, code).split("\n")
    assert first == "(32, 1024, 7168) (32, 1024, 56) (1, 1024) (32,)"
    assert second == "(128, 7168) {128} 32 (16, 7168)"


def test_cuda_python_is_answered_by_the_virtual_runtime(gpu: VirtualGpu):
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed here")
    code = (
        "import torch, cuda_python; cuda_python.install(); from cuda.bindings import runtime\n"
        "graph = torch.cuda.CUDAGraph(); x = torch.zeros(2, device='cuda')\n"
        "with torch.cuda.graph(graph):\n"
        "    print(runtime.cudaStreamGetCaptureInfo(torch.cuda.current_stream().cuda_stream)[1].name)\n"
        "print(runtime.cudaStreamGetCaptureInfo(torch.cuda.current_stream().cuda_stream)[1].name)"
    )
    statuses = inside(gpu, code).split("\n")
    assert statuses == ["cudaStreamCaptureStatusActive", "cudaStreamCaptureStatusNone"]


CUTE_KERNEL = """
import cutlass
from cutlass import cute

@cute.kernel
def nothing(x: cute.Tensor):
    pass

@cute.jit
def launch_nothing(x: cute.Tensor):
    nothing(x).launch(grid=(1, 1, 1), block=(32, 1, 1))
"""


def test_a_cute_dsl_kernel_is_compiled_and_noted_and_not_launched(gpu: VirtualGpu, tmp_path: Path):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed here")
    (tmp_path / "cute_kernel.py").write_text(CUTE_KERNEL)
    code = (
        "import torch, cute_dsl; cute_dsl.install(lambda event, **data: print(event, data['kernel']))\n"
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from cutlass import cute; from cutlass.cute.runtime import from_dlpack; import cute_kernel\n"
        "x = from_dlpack(torch.zeros(32, device='cuda'))\n"
        "compiled = cute.compile(cute_kernel.launch_nothing, x)\n"
        "print(compiled(x), compiled.ir_module is not None)"
    )
    assert inside(gpu, code).split("\n") == ["cute_dsl cute_kernel.launch_nothing", "None True"]


def test_what_flashinfer_would_tune_is_noted_and_not_timed(gpu: VirtualGpu, tmp_path: Path):
    pytest.importorskip("flashinfer", reason="flashinfer-python is not installed here")
    code = (
        "import torch, flashinfer_tuner; flashinfer_tuner.install(lambda event, **data: print(event, data['key']))\n"
        "from flashinfer.autotuner import AutoTuner, DynamicTensorSpec, TunableRunner, TuningConfig, autotune\n"
        "class Runner(TunableRunner):\n"
        "    def get_valid_tactics(self, inputs, profile): return [0, 1]\n"
        "    def forward(self, inputs, tactic=-1, do_preparation=False, **more): raise SystemExit('it was run')\n"
        "spec = DynamicTensorSpec((0,), (0,), (16, 8), lambda m: m)\n"
        "config, x = TuningConfig(dynamic_tensor_specs=(spec,)), torch.empty(16, 64, device='cuda')\n"
        f"with autotune(True, cache={str(tmp_path / 'tactics.json')!r}):\n"
        "    print(AutoTuner.get().choose_one('mm', [Runner()], config, [x])[1])"
    )
    assert inside(gpu, code).split("\n") == ["autotune mm ((8, 64),)", "autotune mm ((16, 64),)", "-1"]
    assert not list(tmp_path.iterdir())


def test_requests_come_alone_then_in_doubled_batches_then_as_long_prompts(gpu: VirtualGpu):
    code = (
        "import rank\n"
        "from types import SimpleNamespace\n"
        "def waves(requests, chunk, context=4096):\n"
        "    facts = {'max_running_requests': requests, 'chunked_prefill_size': chunk}\n"
        "    scheduler = SimpleNamespace(**facts, model_config=SimpleNamespace(context_len=context))\n"
        "    print([(tokens, count) for tokens, _, count in rank.waves(scheduler)])\n"
        "waves(6, 1024); waves(0, None); waves(5000, 8192)"
    )
    few, one, many = inside(gpu, code).split("\n")
    assert few == "[(4, 1), (4, 2), (4, 4), (64, 1), (512, 1), (1088, 1)]"
    assert one == "[(4, 1), (64, 1), (64, 1)]"
    assert many.endswith("(4, 512), (64, 1), (4093, 1), (4093, 1)]")


def test_a_problem_that_sglang_logs_is_an_event_on_disk_at_once(gpu: VirtualGpu, tmp_path: Path):
    code = (
        "import logging, rank\n"
        f"path = {str(tmp_path / 'events')!r}\n"
        "log = logging.getLogger('deep_gemm'); log.addHandler(rank.ProblemLogger(rank.EventLog(path)))\n"
        "log.error('Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=2112, K=7168, num_groups=1 with all Ms.')\n"
        "log.error('something else'); print(open(path).read())"
    )
    event = json.loads(inside(gpu, code))
    assert event.pop("s") >= 0
    assert event == {"event": "problem", "kernel": "GEMM_NT_F8F8BF16", "n": 2112, "k": 7168, "groups": 1}
