"""Kernels do nothing on the virtual GPU, so what a server computes and reads back would be zero.

Where it decides something by such a value, the tensor is small: those are computed on the CPU and written back.
"""

import torch

# Above this many elements a result is made and left as it is: nobody reads a flag out of a large tensor.
MOST_ELEMENTS = 64
COMPARISONS = ("gt", "lt", "ge", "le", "eq", "ne")


def install():
    """Returns the registration, which the caller keeps."""
    library = torch.library.Library("aten", "IMPL")
    for name in COMPARISONS:
        for kind in ("Scalar", "Tensor"):
            library.impl(f"{name}.{kind}", compared(getattr(torch.ops.aten, name)), "CUDA")
    library.impl("fill_.Scalar", filled, "CUDA")
    # It draws again until every value lies between the bounds, which no value of a kernel that never ran does.
    torch.nn.init._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor
    return library


def takes_effect(num_elements):
    """Whether somebody may read this result now; what is being captured into a graph runs later."""
    return num_elements <= MOST_ELEMENTS and not torch.cuda.is_current_stream_capturing()


def compared(compare):
    """The comparison, right for small tensors and False for others."""

    def on_cuda(left, right):
        is_tensor = isinstance(right, torch.Tensor)
        if takes_effect(max(left.numel(), right.numel() if is_tensor else 0)):
            return compare(left.cpu(), right.cpu() if is_tensor else right).to(left.device)
        shape = torch.broadcast_shapes(left.shape, right.shape) if is_tensor else left.shape
        return torch.zeros(shape, dtype=torch.bool, device=left.device)

    return on_cuda


def filled(tensor, value):
    """A fill that takes effect where the tensor is small."""
    if takes_effect(tensor.numel()):
        tensor.copy_(torch.full(tensor.shape, value, dtype=tensor.dtype))
    return tensor
