"""Comparisons and fills of small tensors, computed on the CPU and written back.

Kernels do nothing on the virtual GPU, so a server would read back zeros. Where it branches on a value, the tensor is
small.
"""

import torch

# A larger result keeps the contents it was allocated with: no server reads a flag from a large tensor.
MAX_ELEMENTS = 64
COMPARISONS = ("gt", "lt", "ge", "le", "eq", "ne")


def install():
    """Register the replacements; they last as long as the returned object."""
    library = torch.library.Library("aten", "IMPL")
    for name in COMPARISONS:
        for kind in ("Scalar", "Tensor"):
            library.impl(f"{name}.{kind}", comparison(getattr(torch.ops.aten, name)), "CUDA")
    library.impl("fill_.Scalar", fill_small, "CUDA")
    # It draws again until every value lies within the bounds, and would never end where kernels do nothing.
    torch.nn.init._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor
    return library


def takes_effect(num_elements):
    """Whether the result may be read back now: it is small, and not captured into a CUDA graph, which runs later."""
    return num_elements <= MAX_ELEMENTS and not torch.cuda.is_current_stream_capturing()


def comparison(compare):
    """`compare` with correct results for small tensors; a result of a larger one is False everywhere."""

    def on_cuda(left, right):
        is_tensor = isinstance(right, torch.Tensor)
        if takes_effect(max(left.numel(), right.numel() if is_tensor else 0)):
            return compare(left.cpu(), right.cpu() if is_tensor else right).to(left.device)
        shape = torch.broadcast_shapes(left.shape, right.shape) if is_tensor else left.shape
        return torch.zeros(shape, dtype=torch.bool, device=left.device)

    return on_cuda


def fill_small(tensor, value):
    """Fill the tensor if it is small; leave it as it is otherwise."""
    if takes_effect(tensor.numel()):
        tensor.copy_(torch.full(tensor.shape, value, dtype=tensor.dtype))
    return tensor
