"""The CUDA kernels against the reference kernels: same inputs, one tolerance for each format."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.kernels.protocol import Cache, Quantized
from pipeline.kernels.reference import ReferenceKernels, dequantize_rows

pytestmark = pytest.mark.cuda

REFERENCE = ReferenceKernels()
BF16_ERROR = 5e-3
FP8_ERROR = 5e-2  # both sides round to e4m3 by themselves


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from pipeline.kernels.cuda import CudaKernels

    return CudaKernels(tmp_path_factory.mktemp("deep_gemm"))


def difference(actual: Tensor, expected: Tensor) -> float:
    """Relative error in the Frobenius norm."""
    actual = actual.cpu().double()
    expected = expected.double()
    return float((actual - expected).norm() / expected.norm())


def on_gpu(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.cuda() for tensor in tensors)


def quantized(kernels: Any, x: Tensor, group_rows: int | None = None) -> Quantized:
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device)
    kernels.quantize_fp8(x, out, scale, group_rows=group_rows)
    return out, scale


def weight(n: int, k: int, *outer: int) -> Quantized:
    data = torch.randn(*outer, n, k).to(torch.float8_e4m3fn)
    return data, torch.rand(*outer, -(-n // 128), k // 128) / 16 + 1 / 64


def test_quantized_values_are_the_same(cuda: Any) -> None:
    x = torch.randn(8, 512, dtype=torch.bfloat16)
    (data, scale) = quantized(cuda, x.cuda())
    expected = quantized(REFERENCE, x)
    row_major = scale.view(4, 8).T.contiguous().cpu()
    assert torch.allclose(row_major, expected[1], rtol=1e-6)
    assert difference(dequantize_rows(data.cpu(), row_major), dequantize_rows(*expected)) < FP8_ERROR


@pytest.mark.parametrize("m", [4, 64, 132])
@pytest.mark.parametrize(("n", "k"), [(2112, 1024), (512, 512), (448, 256)])
def test_a_dense_gemm_agrees(cuda: Any, m: int, n: int, k: int) -> None:
    x = torch.randn(m, k, dtype=torch.bfloat16)
    w = weight(n, k)
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    expected = torch.empty(m, n)
    cuda.gemm_fp8(quantized(cuda, x.cuda()), on_gpu(*w), out)
    REFERENCE.gemm_fp8(quantized(REFERENCE, x), w, expected)
    assert difference(out, expected) < FP8_ERROR


def test_a_masked_gemm_agrees(cuda: Any) -> None:
    groups = 3
    rows = 64
    n = 512
    k = 256
    counts = torch.tensor([1, 0, 37], dtype=torch.int32)
    x = torch.randn(groups * rows, k, dtype=torch.bfloat16)
    w = weight(n, k, groups)
    out = torch.zeros(groups, rows, n, dtype=torch.bfloat16, device="cuda")
    expected = torch.zeros(groups, rows, n)
    data, scale = quantized(cuda, x.cuda(), group_rows=rows)
    cuda.grouped_gemm_masked(
        (data.view(groups, rows, k), scale.view(groups, rows, -1)), on_gpu(*w), counts.cuda(), 16, out
    )
    data, scale = quantized(REFERENCE, x)
    REFERENCE.grouped_gemm_masked((data.view(groups, rows, k), scale.view(groups, rows, -1)), w, counts, 16, expected)
    for group, count in enumerate(counts.tolist()):
        if count:
            assert difference(out[group, :count], expected[group, :count]) < FP8_ERROR


def test_dispatch_gemm_and_combine_make_the_same_layer(cuda: Any) -> None:
    tokens = 16
    routes = 2
    groups = 5
    n = 256
    k = 512
    alignment = 128
    rows = alignment * groups
    x = torch.randn(tokens, k, dtype=torch.bfloat16)
    w = weight(n, k, groups)
    gate = (torch.randn(groups, k) / k**0.5).to(torch.bfloat16)  # larger logits saturate, and ties break at will
    results = []
    for kernels, device in ((REFERENCE, "cpu"), (cuda, "cuda")):

        def empty(*shape: int, dtype: torch.dtype = torch.float32, device: str = device) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        ids = empty(tokens, routes, dtype=torch.int64)
        row = empty(tokens, routes, dtype=torch.int64)
        weights = empty(tokens, routes)
        group = empty(rows, dtype=torch.int32)
        kernels.route(x.to(device), gate.to(device), ids, weights)
        kernels.dispatch_contiguous(ids, groups, alignment, group, row)
        spread = empty(rows, k, dtype=torch.float8_e4m3fn), empty(rows, k // 128)
        kernels.scatter(quantized(kernels, x.to(device)), row, spread)
        y = empty(rows, n, dtype=torch.bfloat16)
        out = empty(tokens, n, dtype=torch.bfloat16)
        kernels.grouped_gemm_contiguous(spread, (w[0].to(device), w[1].to(device)), group, y)
        kernels.combine(y, row, weights, out)
        results.append((ids.cpu(), row.cpu(), weights.cpu(), group.cpu(), out))
    for actual, expected in zip(results[1][:2], results[0][:2], strict=True):
        assert torch.equal(actual.sort(dim=1).values, expected.sort(dim=1).values)
    assert torch.equal(results[1][3], results[0][3])
    assert difference(results[1][4], results[0][4]) < FP8_ERROR


def test_masked_dispatch_counts_and_places_every_route(cuda: Any) -> None:
    ids = torch.randint(0, 7, (40, 3))
    row = torch.empty_like(ids).cuda()
    counts = torch.zeros(7, dtype=torch.int32, device="cuda")
    cuda.dispatch_masked(ids.cuda(), 128, counts, row)
    assert counts.cpu().tolist() == torch.bincount(ids.flatten(), minlength=7).tolist()
    assert torch.equal(row.cpu() // 128, ids)
    assert row.unique().numel() == ids.numel()


def test_the_small_kernels_agree(cuda: Any) -> None:
    x = torch.randn(8, 512, dtype=torch.bfloat16)
    w = torch.rand(512).to(torch.bfloat16)
    gate_up = torch.randn(8, 768, dtype=torch.bfloat16)
    q = torch.randn(8, 4, 192, dtype=torch.bfloat16)
    k = torch.randn(8, 64, 192, dtype=torch.bfloat16)
    v = torch.randn(8, 64, 128, dtype=torch.bfloat16)
    lens = torch.tensor([1, 2, 64, 7, 33, 1, 5, 9])
    outs = []
    for kernels, device in ((REFERENCE, "cpu"), (cuda, "cuda")):
        normed = torch.empty_like(x, device=device)
        active = torch.empty(8, 384, dtype=torch.bfloat16, device=device)
        # Every other row, as the tokens of one request lie among those of the others.
        attended = torch.empty(16, 4, 128, dtype=torch.bfloat16, device=device)[1::2]
        kernels.rms_norm(x.to(device), w.to(device), normed)
        kernels.silu_and_mul(gate_up.to(device), active)
        cache = Cache(k.to(device), v.to(device), lens.to(device))
        kernels.attention(q.to(device), cache, 0.07, attended)
        outs.append((normed, active, attended))
    for actual, expected in zip(outs[1], outs[0], strict=True):
        assert difference(actual, expected) < BF16_ERROR


def test_nothing_allocates_and_a_graph_replays(cuda: Any) -> None:
    x = torch.randn(64, 512, dtype=torch.bfloat16, device="cuda")
    w = on_gpu(*weight(512, 512))
    operand = torch.empty(64, 512, dtype=torch.float8_e4m3fn, device="cuda"), torch.empty(64, 4, device="cuda")
    out = torch.empty(64, 512, dtype=torch.bfloat16, device="cuda")

    def step() -> None:
        cuda.quantize_fp8(x, *operand)
        cuda.gemm_fp8(operand, w, out)

    step()
    expected = out.clone()
    with cuda.meter() as measured:
        step()
    assert measured.allocated_bytes == 0
    out.zero_()
    assert cuda.replay(step)
    assert torch.equal(out, expected)
