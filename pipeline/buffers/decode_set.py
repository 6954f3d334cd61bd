"""The buffers that a server's decode step runs over: which fields, how large, with what in them.

Source: SGLang 0.5.23 model_executor/runner/base_runner.py _allocate_decode_buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from pipeline.arithmetic import round_up_to_all
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


class DecodeField(StrEnum):
    """A field of the decode set, by the server's own name; a dot leads into a mapping."""

    INPUT_IDS = "input_ids"
    INPUT_EMBEDS = "input_embeds"
    REQ_POOL_INDICES = "req_pool_indices"
    SEQ_LENS = "seq_lens"
    SEQ_LENS_CPU = "seq_lens_cpu"
    OUT_CACHE_LOC = "out_cache_loc"
    POSITIONS = "positions"
    CUSTOM_MASK = "custom_mask"
    NEXT_TOKEN_LOGITS = "next_token_logits_buffer"
    GLOBAL_NUM_TOKENS = "global_num_tokens_gpu"
    GLOBAL_NUM_TOKENS_FOR_LOGPROB = "global_num_tokens_for_logprob_gpu"
    MROPE_POSITIONS = "mrope_positions"
    NUM_TOKEN_NON_PADDED = "num_token_non_padded"
    PP_HIDDEN_STATES = "pp_proxy_tensors.hidden_states"
    PP_RESIDUAL = "pp_proxy_tensors.residual"


class Rows(Enum):
    """What the rows of a field count; a view of a smaller batch is cut by it."""

    REQUESTS = auto()
    TOKENS = auto()
    MASK = auto()
    """Pairs of a token and a row that it might attend to."""
    FIXED = auto()
    """Nothing that follows from the batch: the field is always whole."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field: the buffer that holds it, and what the buffer's rows count."""

    field: DecodeField
    rows: Rows
    buffer: BufferSpec


@dataclass(frozen=True, slots=True, kw_only=True)
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
    streams: int = 1
    """Residual streams; with more than one, pipeline ranks hand over all of them and no residual."""

    @property
    def decode_tokens(self) -> int:
        """Tokens of the largest decode step."""
        return self.tokens_of(self.max_batch)

    def tokens_of(self, batch: int) -> int:
        """Tokens of a decode step of `batch` requests."""
        return batch * self.tokens_per_request

    def mask_rows_of(self, batch: int) -> int:
        """Pairs that the attention mask of such a step has."""
        return (batch * SEQ_LEN_FILL + self.tokens_of(batch)) * self.tokens_per_request


def aligned_batch(batch: int, size: DecodeSize) -> int:
    """The batch of a dummy run: rounded up to what every parallel axis divides."""
    return round_up_to_all(batch, [size.multiple])


def decode_specs(size: DecodeSize) -> list[BufferSpec]:
    """The buffers of all fields, in order."""
    return [field.buffer for field in decode_fields(size)]


def decode_fields(size: DecodeSize) -> list[FieldSpec]:
    """One spec for each field that is present; an absent field has none, so no view can ever slice it."""
    requests = size.max_batch
    tokens = size.max_tokens
    mask = size.mask_rows_of(size.max_batch)
    ranks = size.num_dp_ranks
    fields = [
        _field(DecodeField.INPUT_IDS, Rows.TOKENS, "int64", tokens),
        _field(DecodeField.INPUT_EMBEDS, Rows.TOKENS, MODEL_DTYPE, tokens, size.hidden),
        _field(DecodeField.REQ_POOL_INDICES, Rows.REQUESTS, "int64", requests),
        _field(DecodeField.SEQ_LENS, Rows.REQUESTS, "int64", requests, content=SEQ_LEN_FILL),
        _field(DecodeField.SEQ_LENS_CPU, Rows.REQUESTS, "int64", requests, content=SEQ_LEN_FILL),
        _field(DecodeField.OUT_CACHE_LOC, Rows.TOKENS, "int64", tokens),
        _field(DecodeField.POSITIONS, Rows.TOKENS, "int64", tokens),
        _field(DecodeField.CUSTOM_MASK, Rows.MASK, "bool", mask, content=True),
        _field(DecodeField.NEXT_TOKEN_LOGITS, Rows.TOKENS, "float32", size.decode_tokens, size.vocab),
        _field(DecodeField.GLOBAL_NUM_TOKENS, Rows.FIXED, "int32", ranks),
        _field(DecodeField.GLOBAL_NUM_TOKENS_FOR_LOGPROB, Rows.FIXED, "int32", ranks),
    ]
    if size.is_multimodal:
        fields.append(_field(DecodeField.MROPE_POSITIONS, Rows.TOKENS, "int64", 3, tokens, rows_axis=1))
    if size.counts_unpadded_tokens:
        fields.append(_field(DecodeField.NUM_TOKEN_NON_PADDED, Rows.FIXED, "int32", 1))
    if size.has_pp_proxies:
        fields += _proxy_fields(size)
    return fields


def _proxy_fields(size: DecodeSize) -> list[FieldSpec]:
    """What one pipeline rank hands to the next."""
    fields = [DecodeField.PP_HIDDEN_STATES]
    if size.streams == 1:
        fields.append(DecodeField.PP_RESIDUAL)
    width = size.streams * size.hidden
    return [_field(field, Rows.TOKENS, MODEL_DTYPE, size.decode_tokens, width) for field in fields]


def _field(
    field: DecodeField, rows: Rows, dtype: str, *shape: int, content: int | bool = 0, rows_axis: int = 0
) -> FieldSpec:
    return FieldSpec(field, rows, BufferSpec(PREFIX + field, dtype, shape, content, rows_axis))
