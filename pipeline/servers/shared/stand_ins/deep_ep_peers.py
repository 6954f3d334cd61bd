"""DeepEP for one rank without its peers: received tensors have the shapes they have when every peer sends as much.

DeepEP's own kernels are compiled ahead of time, so replacing them hides no kernel that a server compiles at run time.
"""

import torch

SCALE_BLOCK = 128
# UE8M0 scales are one byte each; four are packed into an int32.
PACKED_SCALES = 4


def install():
    """Replace the methods of deep_ep.Buffer; does nothing when DeepEP is not installed."""
    try:
        import deep_ep
    except Exception:  # noqa: BLE001 - its import raises various errors where its own prerequisites are missing
        return
    for name in (
        "__init__",
        "capture",
        "clean_low_latency_buffer",
        "combine",
        "destroy",
        "dispatch",
        "get_dispatch_layout",
        "low_latency_combine",
        "low_latency_dispatch",
    ):
        setattr(deep_ep.Buffer, name, getattr(Buffer, name))


class CompletedEvent:
    """An event that is already over."""

    event = None

    def current_stream_wait(self):
        """Nothing to wait for."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Buffer:
    """The methods that a server calls, with the parameters of DeepEP's that matter here."""

    num_sms = 20

    def __init__(self, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, *_, **__):
        self.group = group
        self.rank = group.rank()
        self.group_size = group.size()
        self.num_nvl_bytes = num_nvl_bytes
        self.num_rdma_bytes = num_rdma_bytes
        self.low_latency_mode = low_latency_mode

    @staticmethod
    def capture():
        return CompletedEvent()

    def destroy(self):
        """There is nothing to free."""

    def clean_low_latency_buffer(self, *_, **__):
        """There is nothing to clear."""

    def get_dispatch_layout(self, topk_idx, num_experts, **_):
        num_tokens = topk_idx.shape[0]
        per_rank = torch.zeros(self.group_size, dtype=torch.int32, device=topk_idx.device)
        per_expert = torch.zeros(num_experts, dtype=torch.int32, device=topk_idx.device)
        in_rank = torch.zeros(num_tokens, self.group_size, dtype=torch.bool, device=topk_idx.device)
        return per_rank, None, per_expert, in_rank, CompletedEvent()

    def dispatch(self, x, topk_idx=None, topk_weights=None, num_tokens_per_expert=None, expert_alignment=1, **_):
        tokens = (x[0] if isinstance(x, tuple) else x).shape[0]
        num_local = num_tokens_per_expert.numel() // self.group_size
        # Every rank sends as many tokens as this one, and they are spread evenly over the experts.
        routes = tokens * self.group_size * topk_idx.shape[1]
        each = -(-routes // (num_tokens_per_expert.numel() * expert_alignment)) * expert_alignment
        rows = min(tokens * self.group_size, each * num_local)
        received = tuple(of_rows(part, rows) for part in x) if isinstance(x, tuple) else of_rows(x, rows)
        indices = of_rows(topk_idx, rows)
        weights = of_rows(topk_weights, rows)
        return received, indices, weights, [each] * num_local, (tokens,), CompletedEvent()

    def combine(self, x, handle, topk_weights=None, **_):
        return of_rows(x, handle[0]), topk_weights, CompletedEvent()

    def low_latency_dispatch(self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, use_fp8=True, **options):
        num_local = num_experts // self.group_size
        rows = num_max_dispatch_tokens_per_rank * self.group_size
        count = torch.zeros(num_local, dtype=torch.int32, device=x.device)
        hidden = x.shape[1]
        if not use_fp8:
            return x.new_empty(num_local, rows, hidden), count, (x.shape[0],), CompletedEvent(), no_hook
        values = torch.empty(num_local, rows, hidden, dtype=torch.float8_e4m3fn, device=x.device)
        packed = options.get("use_ue8m0", False)
        width = hidden // SCALE_BLOCK // (PACKED_SCALES if packed else 1)
        # Column-major in the last two dimensions, as TMA on Hopper reads scales.
        scales = torch.empty(num_local, width, rows, dtype=torch.int32 if packed else torch.float32, device=x.device)
        return (values, scales.transpose(1, 2)), count, (x.shape[0],), CompletedEvent(), no_hook

    def low_latency_combine(self, x, topk_idx, topk_weights, handle, out=None, **_):
        combined = x.new_empty(handle[0], x.shape[-1]) if out is None else out
        return combined, CompletedEvent(), no_hook


def of_rows(tensor, rows):
    """An uninitialised tensor like this one with another number of rows."""
    return tensor.new_empty(rows, *tensor.shape[1:])


def no_hook():
    """The receive hook: there is nothing to wait for."""
