"""Write into a buffer what its spec says that it holds; nothing is allocated."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.buffers.layout import Content

# Clears the highest exponent bit of each e4m3 byte, so that no random byte is NaN and none is above 1.875.
E4M3_BELOW_TWO = 0x3FBFBFBFBFBFBFBF
WEIGHT_SCALE = 1 / 64


def write_content(buffer: Tensor, content: int | bool | Content) -> None:
    """Fill the whole buffer in place; Content.UNSET leaves it alone."""
    if not isinstance(content, Content):
        buffer.fill_(content)
        return
    match content:
        case Content.UNSET:
            pass
        case Content.NORMAL:
            buffer.normal_()
        case Content.FP8_BELOW_TWO:
            buffer.view(torch.uint8).flatten().view(torch.int64).random_().bitwise_and_(E4M3_BELOW_TWO)
        case Content.WEIGHT_SCALES:
            buffer.uniform_(0.5 * WEIGHT_SCALE, 1.5 * WEIGHT_SCALE)
        case Content.POSITIONS:
            for position, row in enumerate(buffer):
                row.fill_(position + 1)
