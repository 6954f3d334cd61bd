"""The buffers that a server's decode step runs over: which fields, how large, with what in them.

Source: SGLang 0.5.23 model_executor/runner/base_runner.py _allocate_decode_buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pipeline.buffers.alignment import round_up_to_all
from pipeline.buffers.layout import BufferSpec

MODEL_DTYPE = "bfloat16"
PREFIX = "decode."
# get_cuda_graph_seq_len_fill_value: every CUDA attention backend fills 1, and a zero would hang or skip kernels.
SEQ_LEN_FILL = 1


class AdapterKind(Enum):
    """Whose buffers a dummy run uses."""

    auto = "auto"
    """decode_graph, or eager when the server runs without CUDA graphs."""
    decode_graph = "decode_graph"
    """The decode graph runner's own buffers, at its largest captured batch."""
    eager = "eager"
    """The eager runner's: sized for prefill, with the fields that its registry lacks filled in."""

    def chosen(self, *, has_cuda_graphs: bool) -> AdapterKind:
        """decode_graph or eager."""
        if self is not AdapterKind.auto:
            return self
        return AdapterKind.decode_graph if has_cuda_graphs else AdapterKind.eager


@dataclass(frozen=True, slots=True)
class DecodeSize:
    """How large a decode set is. Token-axis fields hold `max_tokens`, request-axis fields `max_batch`."""

    kind: AdapterKind
    """decode_graph or eager."""
    max_batch: int
    tokens_per_request: int
    max_tokens: int
    """Capacity of the token axis; above max_batch * tokens_per_request when prefill shares the buffers."""
    hidden: int
    vocab: int
    num_dp_ranks: int
    multiple: int
    """What every dummy run's batch is a multiple of."""
    has_pp_proxies: bool
    counts_unpadded_tokens: bool
    """Whether num_token_non_padded is present (expert parallel or an all-to-all backend)."""
    is_multimodal: bool = False
    has_encoder: bool = False
    has_mamba: bool = False
    streams: int = 1
    """Residual streams; with more than one, pipeline stages hand over all of them and no residual."""

    @property
    def decode_tokens(self) -> int:
        """Tokens of the largest decode step."""
        return self.max_batch * self.tokens_per_request


def aligned_batch(batch: int, size: DecodeSize) -> int:
    """The batch of a dummy run: rounded up to what every parallel axis divides."""
    return round_up_to_all(batch, [size.multiple])


def decode_specs(size: DecodeSize) -> list[BufferSpec]:
    """One spec for each field that is present; an absent field has none, so no view can ever slice it."""
    tokens = size.max_tokens
    batch = size.max_batch
    per_request = size.tokens_per_request
    decode_tokens = size.decode_tokens

    def field(name: str, dtype: str, *shape: int, fill: int | bool = 0, rows_axis: int = 0) -> BufferSpec:
        return BufferSpec(PREFIX + name, dtype, shape, fill=fill, rows_axis=rows_axis)

    specs = [
        field("input_ids", "int64", tokens),
        field("input_embeds", MODEL_DTYPE, tokens, size.hidden),
        field("req_pool_indices", "int64", batch),
        field("seq_lens", "int64", batch, fill=SEQ_LEN_FILL),
        field("seq_lens_cpu", "int64", batch, fill=SEQ_LEN_FILL),
        field("out_cache_loc", "int64", tokens),
        field("positions", "int64", tokens),
        field("custom_mask", "bool", (batch * SEQ_LEN_FILL + decode_tokens) * per_request, fill=True),
        field("next_token_logits_buffer", "float32", decode_tokens, size.vocab),
        field("global_num_tokens_gpu", "int32", size.num_dp_ranks),
        field("global_num_tokens_for_logprob_gpu", "int32", size.num_dp_ranks),
    ]
    if size.is_multimodal:
        specs.append(field("mrope_positions", "int64", 3, tokens, rows_axis=1))
    if size.counts_unpadded_tokens:
        specs.append(field("num_token_non_padded", "int32", 1))
    if size.has_mamba:
        specs += [field("mamba_track_indices", "int64", batch), field("mamba_track_mask", "bool", batch, fill=False)]
    if size.has_pp_proxies:
        for name in ("hidden_states", "residual") if size.streams == 1 else ("hidden_states",):
            specs.append(field(f"pp_proxy_tensors.{name}", MODEL_DTYPE, decode_tokens, size.streams * size.hidden))
    if size.has_encoder:
        specs.append(field("encoder_lens", "int32", batch))
    return specs
