"""The routed experts of a dummy layer: routing, both grouped products, and the sum of what they give."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.arithmetic import ceil_div
from pipeline.buffers.names import LayerBuffer, LinearBuffer
from pipeline.kernels.layer_operands import LayerOperands
from pipeline.kernels.protocol import Kernels, Quantized
from pipeline.servers.shared.contiguous_layout import ALIGNMENT
from pipeline.workload.linears import Linear


@dataclass(frozen=True, slots=True)
class DummyExperts:
    """In the contiguous or the masked layout, as the layer's plan says."""

    operands: LayerOperands
    kernels: Kernels
    w13: Linear
    w2: Linear

    def run(self, normed: Tensor, hidden: Tensor, tokens: int) -> int:
        """Add the experts' output to the hidden states; how many GEMMs were launched."""
        kernels = self.kernels
        operands = self.operands
        ids = operands.rows(LayerBuffer.IDS, tokens)
        weights = operands.rows(LayerBuffer.ROUTE_WEIGHTS, tokens)
        row = operands.rows(LayerBuffer.ROW_OF_ROUTE, tokens)
        kernels.route(normed, operands.whole(LayerBuffer.GATE), ids, weights)
        token_x = operands.rows(LayerBuffer.TOKEN_X, tokens), operands.rows(LayerBuffer.TOKEN_X_SCALE, tokens)
        kernels.quantize_fp8(normed, *token_x)
        self._dispatch(ids, row)
        group_rows = operands.plan.masked_rows
        kernels.scatter(token_x, row, self._input(self.w13), group_rows=group_rows)
        self._product(self.w13)
        activated = operands.whole(LayerBuffer.ACTIVATED)
        kernels.silu_and_mul(operands.whole_of(self.w13.name, LinearBuffer.OUT), activated)
        kernels.quantize_fp8(activated, *self._input(self.w2), group_rows=group_rows)
        self._product(self.w2)
        combined = operands.rows(LayerBuffer.COMBINED, tokens)
        kernels.combine(operands.whole_of(self.w2.name, LinearBuffer.OUT), row, weights, combined)
        hidden.add_(combined)
        return 2

    def _dispatch(self, ids: Tensor, row: Tensor) -> None:
        """Choose each route's row in the operands of the grouped products."""
        masked_rows = self.operands.plan.masked_rows
        if masked_rows is None:
            group_of_row = self.operands.whole(LayerBuffer.GROUP_OF_ROW)
            self.kernels.dispatch_contiguous(ids, self.w13.groups, ALIGNMENT, group_of_row, row)
        else:
            self.kernels.dispatch_masked(ids, masked_rows, self.operands.whole(LayerBuffer.MASKED_M), row)

    def _product(self, linear: Linear) -> None:
        data, scale = self._input(linear)
        w = self._weight(linear)
        out = self.operands.whole_of(linear.name, LinearBuffer.OUT)
        rows = self.operands.plan.masked_rows
        if rows is None:
            group_of_row = self.operands.whole(LayerBuffer.GROUP_OF_ROW)
            self.kernels.grouped_gemm_contiguous((data, scale), w, group_of_row, out)
            return
        groups = linear.groups
        x = data.view(groups, rows, -1), scale.view(groups, rows, -1)
        masked_m = self.operands.whole(LayerBuffer.MASKED_M)
        expected_m = max(1, ceil_div(self.operands.whole(LayerBuffer.IDS).numel(), groups))
        self.kernels.grouped_gemm_masked(x, w, masked_m, expected_m, out.view(groups, rows, -1))

    def _input(self, linear: Linear) -> Quantized:
        x = self.operands.whole_of(linear.name, LinearBuffer.X)
        return x, self.operands.whole_of(linear.name, LinearBuffer.X_SCALE)

    def _weight(self, linear: Linear) -> Quantized:
        """One weight for each expert; where only one was reserved, it is repeated without a copy."""
        data, scale = self.operands.weight(linear.name)
        return data.expand(linear.groups, -1, -1), scale.expand(linear.groups, -1, -1)
