"""How large the decode set of a recipe is, after the batch is rounded to what every parallel axis divides."""

from __future__ import annotations

import math

from pipeline.arithmetic import round_up
from pipeline.buffers.decode_set import AdapterKind, DecodeSize
from pipeline.servers.derive import Workload
from pipeline.workload.parallel import Parallel


def decode_size(workload: Workload, parallel: Parallel, kind: AdapterKind, *, row_multiple: int = 1) -> DecodeSize:
    """The set of one runner; `row_multiple`: what the device's kernels want the rows to be a multiple of."""
    rules = workload.rules
    kind = kind.chosen(has_cuda_graphs=rules.has_cuda_graphs)
    eager = kind is AdapterKind.eager
    per_request = rules.tokens_per_request
    largest = rules.eager_batch if eager else rules.decode_batch
    multiple = math.lcm(rules.batch_multiple, row_multiple)
    batch = round_up(largest, multiple)
    prefill_tokens = max(rules.chunk, 0) if eager else 0
    return DecodeSize(
        kind=kind,
        max_batch=batch,
        tokens_per_request=per_request,
        max_tokens=round_up(max(prefill_tokens, batch * per_request), multiple),
        hidden=workload.facts.hidden,
        vocab=workload.facts.vocab,
        num_dp_ranks=parallel.attn_dp,
        multiple=multiple,
        has_pp_proxies=parallel.pp > 1,
        counts_unpadded_tokens=rules.counts_unpadded_tokens,
        is_multimodal=workload.facts.has_mrope,
        streams=workload.facts.streams,
    )
