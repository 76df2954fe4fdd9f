"""What stands between scaled products: each row quantised to e4m3, with a scale of its own, in the pass that makes it.

A row is written as row / scale, with the scale such that its largest magnitude becomes the format's. A scale is never
zero: a row of zeros keeps a small one. Numbers that are not finite make their own row's results NaN, and no other's.
Outputs of another dtype than e4m3 get row / scale unrounded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omnivoice.kernels.products import start_behind

LARGEST = 448.0
"""The largest number of e4m3."""
SMALLEST = 1e-30
"""Rows whose largest magnitude is below it are quantised as if it was this."""
_LARGEST = tl.constexpr(LARGEST)
_SMALLEST = tl.constexpr(SMALLEST)


@triton.jit
def _quantised(value, narrow, scales, row, width, column, inside, factor):
    """Store a float32 row, and the scale that times the stored row gives the row times `factor`."""
    largest = tl.maximum(tl.max(tl.abs(value), axis=0), _SMALLEST)
    stored = (value * (_LARGEST / largest)).to(narrow.dtype.element_ty)
    tl.store(narrow + row.to(tl.int64) * width + column, stored, mask=inside)
    tl.store(scales + row, largest * (factor / _LARGEST))


@triton.jit
def _add_norm(
    hidden,
    addend,
    narrow,
    scales,
    squares,
    num_rows_at,
    width,
    eps,
    ADDS: tl.constexpr,
    QUANTISES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    row = tl.program_id(0)
    if row >= tl.load(num_rows_at):
        return
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row.to(tl.int64) * width + column
    value = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        added = (value + tl.load(addend + at, mask=inside, other=0.0).to(tl.float32)).to(hidden.dtype.element_ty)
        tl.store(hidden + at, added, mask=inside)
        value = added.to(tl.float32)
    square = tl.sum(value * value, axis=0)
    if QUANTISES:
        # The norm only scales the row, so it goes into the row's scale.
        _quantised(value, narrow, scales, row, width, column, inside, tl.rsqrt(square / width + eps))
    else:
        tl.store(squares + row, square)


def add_norm_quantise(
    hidden: torch.Tensor,
    addend: torch.Tensor | None,
    narrow: torch.Tensor,
    scales: torch.Tensor,
    num_rows: torch.Tensor,
    eps: float,
    chained: bool = False,
) -> None:
    """Add `addend`, if any, to the residual rows `hidden` (rows, width) in place; RMS-norm and quantise the sums.

    `narrow` (rows, width) e4m3 and `scales` float32 (rows, 1) are written; the norm's weight is folded into the product
    that follows. `num_rows` int32 on the device says how many rows count.
    """
    _launch_add_norm(hidden, addend, narrow, scales, scales, num_rows, eps, quantises=True, chained=chained)


def add_sum_squares(
    hidden: torch.Tensor, addend: torch.Tensor, squares: torch.Tensor, num_rows: torch.Tensor, chained: bool = False
) -> None:
    """Add `addend` to the residual rows `hidden` in place, and leave each row's sum of squares in `squares` (rows,)."""
    _launch_add_norm(hidden, addend, hidden, squares, squares, num_rows, 0.0, quantises=False, chained=chained)


def _launch_add_norm(
    hidden: torch.Tensor,
    addend: torch.Tensor | None,
    narrow: torch.Tensor,
    scales: torch.Tensor,
    squares: torch.Tensor,
    num_rows: torch.Tensor,
    eps: float,
    quantises: bool,
    chained: bool,
) -> None:
    rows, width = hidden.shape
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        hidden,
        hidden if addend is None else addend,
        narrow,
        scales,
        squares,
        num_rows,
        width,
        eps,
        ADDS=addend is not None,
        QUANTISES=quantises,
        BLOCK=block,
        num_warps=_warps(block, 8),
        CHAINED=chained,
        launch_pdl=chained,
    )


@triton.jit
def _quantise(x, narrow, scales, num_rows_at, width, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    start_behind(CHAINED)
    row = tl.program_id(0)
    if row >= tl.load(num_rows_at):
        return
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row.to(tl.int64) * width + column, mask=inside, other=0.0).to(tl.float32)
    _quantised(value, narrow, scales, row, width, column, inside, 1.0)


def quantise(
    x: torch.Tensor, narrow: torch.Tensor, scales: torch.Tensor, num_rows: torch.Tensor, chained: bool = False
) -> None:
    """Fill `narrow` (rows, width) e4m3 and `scales` float32 (rows, 1) from the rows `x`."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _quantise[(rows,)](
        x,
        narrow,
        scales,
        num_rows,
        width,
        BLOCK=block,
        num_warps=_warps(block, 16),
        CHAINED=chained,
        launch_pdl=chained,
    )


@triton.jit
def _gate_quantise(
    gate_up, narrow, scales, num_rows_at, width, GROUP: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):
    start_behind(CHAINED)
    row = tl.program_id(0)
    if row >= tl.load(num_rows_at):
        return
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row.to(tl.int64) * (2 * width) + (column // GROUP) * (2 * GROUP) + column % GROUP
    gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + GROUP, mask=inside, other=0.0).to(tl.float32)
    _quantised(gate / (1.0 + tl.exp(-gate)) * up, narrow, scales, row, width, column, inside, 1.0)


def gate_quantise(
    gate_up: torch.Tensor,
    narrow: torch.Tensor,
    scales: torch.Tensor,
    num_rows: torch.Tensor,
    group: int,
    chained: bool = False,
) -> None:
    """Fill `narrow` (rows, width) e4m3 and `scales` float32 (rows, 1) with SwiGLU of `gate_up` (rows, 2 · width).

    Groups of `group` columns of the gate and of the up projection take turns in `gate_up`.
    """
    rows, width = narrow.shape
    block = triton.next_power_of_2(width)
    _gate_quantise[(rows,)](
        gate_up,
        narrow,
        scales,
        num_rows,
        width,
        GROUP=group,
        BLOCK=block,
        num_warps=_warps(block, 16),
        CHAINED=chained,
        launch_pdl=chained,
    )


def _warps(block: int, per_thread: int) -> int:
    """Warps for a row of `block` elements: 8 a thread are 16 bytes of bfloat16, 16 are 16 bytes of e4m3.

    Where both are stored, 16 a thread would send the row through shared memory in between.
    """
    return min(max(block // (32 * per_thread), 1), 16)
