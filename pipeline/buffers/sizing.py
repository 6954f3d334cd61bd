"""From a recipe's workload to the one layout: the decode set and the operands of every dummy layer."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.buffers.decode_set import AdapterKind, DecodeSize, decode_specs
from pipeline.buffers.decode_size import decode_size
from pipeline.buffers.layer_plans import LayerPlan, distinct_layers, extend_shape
from pipeline.buffers.layout import Layout, lay_out
from pipeline.buffers.operands import layer_specs
from pipeline.servers.derive import Workload
from pipeline.workload.parallel import Parallel

# MN-major fp32 scales are read 16 bytes at a time by the copy engine of sm_90.
TMA_ROWS = 4


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """Everything `allocate` needs to know."""

    size: DecodeSize
    layers: tuple[LayerPlan, ...]
    layout: Layout


def plan_buffers(workload: Workload, parallel: Parallel, kind: AdapterKind, *, on_gpu: bool) -> BufferPlan:
    """The layout of the one allocation.

    On the CPU all experts share one weight, because the reference has no use for more.
    """
    size = decode_size(workload, parallel, kind, row_multiple=TMA_ROWS if on_gpu else 1)
    extend_tokens = extend_shape(workload, size, on_gpu=on_gpu)
    layers = distinct_layers(workload, size, extend_tokens=extend_tokens)
    specs = decode_specs(size)
    for layer in layers:
        specs += layer_specs(layer, workload, on_gpu=on_gpu)
    return BufferPlan(size, layers, lay_out(specs))
