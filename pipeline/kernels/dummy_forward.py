"""One dummy forward of a layer over the arena: real shapes, random values, nothing allocated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.buffers.arena import Arena
from pipeline.buffers.sizing import LayerPlan
from pipeline.kernels import Kernels, Quantized
from pipeline.workload.linears import ATTENDED, HIDDEN, Linear, Role
from pipeline.workload.servers.sglang_m import CONTIGUOUS_ALIGNMENT

# Clears the highest exponent bit of each e4m3 byte, so that no random byte is NaN and none is above 1.875.
E4M3_BELOW_TWO = 0x3FBFBFBFBFBFBFBF
WEIGHT_SCALE = 1 / 64
ATTENTION_ROLES = (Role.ATTENTION, Role.KV_UP, Role.INDEXER, Role.INDEXER_KEY)
GATE_UP = ".gate_up_proj"


@dataclass(slots=True)
class DummyLayer:
    """A layer whose operands lie in the arena; `run` may be called inside its phase only."""

    plan: LayerPlan
    arena: Arena
    kernels: Kernels

    def run(self, tokens: int, seq_lens_B: Tensor) -> int:
        """Run the layer over what `randomize` left; returns how many GEMMs were launched.

        `tokens` is the batch times the tokens of one request, `seq_lens_B` the decode set's own; an extend-shaped layer
        keeps its own, one row for each position in a request. Only launches: a CUDA graph can capture it.
        """
        hidden = self._rows("hidden", tokens)
        normed = self._rows("normed", tokens)
        self._norm(hidden, normed)
        seq_lens_B = self._slot("seen")[0] if self.plan.is_extend else seq_lens_B
        launched = self._attention(normed, hidden, tokens, seq_lens_B)
        self._norm(hidden, normed)
        for linear in self.plan.linears:
            if linear.name.endswith(GATE_UP):
                launched += self._feed_forward(linear.name.removesuffix(GATE_UP), normed, hidden, tokens)
        if self.plan.has_experts:
            launched += self._experts(normed, hidden, tokens)
        return launched

    def _attention(self, normed: Tensor, hidden: Tensor, tokens: int, seq_lens_B: Tensor) -> int:
        """Linears in order; the attention itself runs before the first one that reads what it gave."""
        launched = 0
        is_attended = False
        for linear in self.plan.linears:
            if linear.role not in ATTENTION_ROLES:
                continue
            if linear.source == ATTENDED and not is_attended:
                self._attend(tokens, seq_lens_B)
                is_attended = True
            x = normed if linear.source == HIDDEN else self._input(linear, tokens)
            self._gemm(linear.name, x, tokens, out=hidden if linear.source == ATTENDED else None)
            launched += 1
        if not is_attended:
            self._attend(tokens, seq_lens_B)
        return launched

    def _input(self, linear: Linear, tokens: int) -> Tensor:
        """The columns that the linear reads of an earlier output, normed as models do between two projections.

        A grouped output projection or a recurrence between attention and the last linear is no product of this list:
        its place is taken by the first columns of what was attended.
        """
        attended = self._rows("attended", tokens).flatten(1)
        if linear.source == ATTENDED and linear.k == attended.shape[1]:
            return attended
        source = attended if linear.source == ATTENDED else self._rows(f"{linear.source}.out", tokens)
        if linear.k > source.shape[1]:
            source = self._rows("hidden", tokens)
        columns = source.narrow(1, min(linear.source_column, source.shape[1] - linear.k), linear.k)
        x = self._rows(f"{linear.name}.normed", tokens)
        self._norm(columns, x)
        return x

    def _attend(self, tokens: int, seq_lens_B: Tensor) -> None:
        shape = self.plan.geometry
        query = self.plan.query
        attended = self._rows("attended", tokens)
        requests = seq_lens_B.shape[0]
        if query is None:
            q = self._rows("query", tokens)
        else:
            q = (
                self._rows(f"{query.name}.out", tokens)
                .narrow(1, 0, shape.heads * shape.head)
                .unflatten(1, (shape.heads, -1))
            )
        per_request = tokens // requests
        # Every token of a request sees the request's own cached rows; views only, so nothing is copied.
        for token in range(per_request):
            step = slice(token, None, per_request)
            self.kernels.attention(
                q[step],
                self._rows("k_cache", requests),
                self._rows("v_cache", requests),
                self._slot("seen")[token] if self.plan.is_extend else seq_lens_B,
                shape.head**-0.5,
                attended[step],
            )

    def _feed_forward(self, name: str, normed: Tensor, hidden: Tensor, tokens: int) -> int:
        gate_up = self._gemm(f"{name}{GATE_UP}", normed, tokens)
        activated = self._rows(f"{name}{GATE_UP}.activated", tokens)
        self.kernels.silu_and_mul(gate_up, activated)
        if not self._has(f"{name}.down_proj"):
            return 1
        self._gemm(f"{name}.down_proj", activated, tokens, out=hidden)
        return 2

    def _experts(self, normed: Tensor, hidden: Tensor, tokens: int) -> int:
        kernels, w13, w2 = self.kernels, *self._expert_linears()
        ids, weights, row = (self._rows(name, tokens) for name in ("ids", "route_weights", "row_of_route"))
        kernels.route(normed, self._slot("gate"), ids, weights)
        token_x = self._rows("token.x", tokens), self._rows("token.x_scale", tokens)
        kernels.quantize_fp8(normed, *token_x)
        self._dispatch(ids, row)
        group_rows = self.plan.masked_rows
        kernels.scatter(token_x, row, self._operand(w13), group_rows=group_rows)
        self._grouped(w13)
        kernels.silu_and_mul(self._slot(f"{w13.name}.out"), self._slot("activated"))
        kernels.quantize_fp8(self._slot("activated"), *self._operand(w2), group_rows=group_rows)
        self._grouped(w2)
        combined = self._rows("combined", tokens)
        kernels.combine(self._slot(f"{w2.name}.out"), row, weights, combined)
        hidden.add_(combined)
        return 2

    def _dispatch(self, ids: Tensor, row: Tensor) -> None:
        if self.plan.masked_rows is None:
            groups = self._expert_linears()[0].groups
            self.kernels.dispatch_contiguous(ids, groups, CONTIGUOUS_ALIGNMENT, self._slot("group_of_row"), row)
        else:
            self.kernels.dispatch_masked(ids, self.plan.masked_rows, self._slot("masked_m"), row)

    def _grouped(self, linear: Linear) -> None:
        x = self._operand(linear)
        w = self._expert_weight(linear)
        out = self._slot(f"{linear.name}.out")
        rows = self.plan.masked_rows
        if rows is None:
            self.kernels.grouped_gemm_contiguous(x, w, self._slot("group_of_row"), out)
            return
        grouped = tuple(data.view(linear.groups, rows, -1) for data in x)
        masked_m = self._slot("masked_m")
        expected_m = max(1, -(-self._slot("ids").numel() // linear.groups))
        self.kernels.grouped_gemm_masked(
            (grouped[0], grouped[1]), w, masked_m, expected_m, out.view(linear.groups, rows, -1)
        )

    def _gemm(self, name: str, x: Tensor, tokens: int, *, out: Tensor | None = None) -> Tensor:
        operand = self._rows(f"{name}.x", tokens), self._rows(f"{name}.x_scale", tokens)
        self.kernels.quantize_fp8(x, *operand)
        out = self._rows(f"{name}.out", tokens) if out is None else out
        self.kernels.gemm_fp8(operand, (self._slot(f"{name}.w"), self._slot(f"{name}.w_scale")), out)
        return out

    def _norm(self, x: Tensor, out: Tensor) -> None:
        self.kernels.rms_norm(x, self._slot("norm_weight").narrow(0, 0, x.shape[1]), out)

    def _expert_linears(self) -> tuple[Linear, Linear]:
        w13, w2 = (linear for linear in self.plan.linears if linear.role is Role.EXPERTS)
        return w13, w2

    def _expert_weight(self, linear: Linear) -> Quantized:
        data = self._slot(f"{linear.name}.w")
        scale = self._slot(f"{linear.name}.w_scale")
        return data.expand(linear.groups, -1, -1), scale.expand(linear.groups, -1, -1)

    def _operand(self, linear: Linear) -> Quantized:
        return self._slot(f"{linear.name}.x"), self._slot(f"{linear.name}.x_scale")

    def randomize(self) -> None:
        """Random, never zero: a kernel may take a short cut on zeros, and a stand-in returns them."""
        for region in self.arena.layout.regions:
            if not region.spec.name.startswith(f"{self.plan.phase}."):
                continue
            buffer = self.arena[region.spec.name]
            kind = region.spec.name.rsplit(".", 1)[1]
            if kind == "w":
                buffer.view(torch.uint8).flatten().view(torch.int64).random_().bitwise_and_(E4M3_BELOW_TWO)
            elif kind == "w_scale":
                buffer.uniform_(0.5 * WEIGHT_SCALE, 1.5 * WEIGHT_SCALE)
            elif kind in ("hidden", "k_cache", "v_cache", "gate", "query"):
                buffer.normal_()
            elif kind == "norm_weight":
                buffer.fill_(1)
            elif kind == "seen":
                for position, seen_B in enumerate(buffer):
                    seen_B.fill_(position + 1)

    def _has(self, name: str) -> bool:
        return f"{self.plan.phase}.{name}.w" in self.arena

    def _slot(self, name: str) -> Tensor:
        return self.arena[f"{self.plan.phase}.{name}"]

    def _rows(self, name: str, n: int) -> Tensor:
        return self.arena.rows(f"{self.plan.phase}.{name}", n)
