"""The codec decoder's elementwise work between two convolutions, in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def _snake(
    x,
    bias,
    residual,
    alpha,
    inverse,
    valid,
    total,
    channels,
    samples,
    FACTOR: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    KEEPS_SUM: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    line = tl.program_id(1)
    if CHANNELS_LAST:
        # A line is a row: its samples one after another, each with all its channels.
        batch = line
        channel = position % channels
        time = position // channels
        length = samples * channels
    else:
        # A line is one channel of one row.
        batch = line // channels
        channel = line % channels
        time = position
        length = samples
    inside = position < length
    at = line.to(tl.int64) * length + position
    value = tl.load(x + at, mask=inside, other=0.0) + tl.load(bias + channel)
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=inside, other=0.0)
    if KEEPS_SUM:
        tl.store(total + at, value, mask=inside)
    # The accurate sine, with range reduction: an approximate one is off by more than float32's rounding.
    sine = tl.sin(value * tl.load(alpha + channel))
    value += sine * sine * tl.load(inverse + channel)
    is_valid = tl.load(valid + batch * (samples // FACTOR) + time // FACTOR, mask=inside, other=0)
    # Chosen, not multiplied: what padding holds may be infinite.
    tl.store(x + at, tl.where(is_valid != 0, value, 0.0), mask=inside)


def snake_masked(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None,
    alpha: torch.Tensor,
    inverse: torch.Tensor,
    valid: torch.Tensor,
    keeps_sum: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return `total = x + bias (+ residual)` and `total + sin²(alpha · total) · inverse`, zero where not `valid`.

    `x` and `residual` are float32 (batch, channels, 1, samples), of one layout: contiguous, or dense with channels
    last. `bias`, `alpha` and `inverse` are (channels,), `valid` bool (batch, frames); a frame is samples / frames
    samples. **Both inputs are spent**: the second result lies in `x`, the first, None unless `keeps_sum`, in
    `residual` where there is one. Raises `ValueError` for a layout that the kernel cannot walk.
    """
    batch, channels, _, samples = x.shape
    # Not by strides: those of an axis of one element mean nothing, and convolutions return any.
    channels_last = not x.is_contiguous()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    if not all(y is None or y.is_contiguous(memory_format=layout) for y in (x, residual)):
        raise ValueError("x and residual must be dense and laid out alike, with samples or channels last")
    if not valid.is_contiguous() or samples % valid.shape[1]:
        raise ValueError(f"{samples} samples are no whole multiple of the {valid.shape[1]} frames of valid")
    total = None
    if keeps_sum:
        total = torch.empty_like(x) if residual is None else residual
    lines, length = (batch, samples * channels) if channels_last else (batch * channels, samples)
    # Blocks first: a CUDA grid's second axis ends at 65535, and a row of 120 s has more blocks than that.
    _snake[(triton.cdiv(length, _BLOCK), lines)](
        x,
        bias,
        x if residual is None else residual,
        alpha,
        inverse,
        valid.view(torch.uint8),
        x if total is None else total,
        channels,
        samples,
        FACTOR=samples // valid.shape[1],
        HAS_RESIDUAL=residual is not None,
        KEEPS_SUM=keeps_sum,
        CHANNELS_LAST=channels_last,
        BLOCK=_BLOCK,
    )
    return total, x
