"""What surrounds the layers: ids to embedding rows, and the two branches' last rows to one row a target frame."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omnivoice.kernels.products import row_scale, start_behind


@triton.jit
def _store_square(squares, stride, row, value, PARTS: tl.constexpr):
    """Leave a whole row's sum of squares in its first part, and nothing in the others."""
    tl.store(squares + row, tl.sum(value * value, axis=0))
    for part in tl.static_range(1, PARTS):
        tl.store(squares + part * stride + row, 0.0)


@triton.jit
def _embed(
    row_target,
    row_ids,
    codes,
    text_table,
    audio_table,
    hidden,
    squares,
    squares_stride,
    num_rows_at,
    width,
    audio_vocab,
    CODEBOOKS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    row = tl.program_id(0)
    if row >= tl.load(num_rows_at):
        return
    column = tl.arange(0, BLOCK)
    inside = column < width
    target = tl.load(row_target + row)
    source = row_ids + row * CODEBOOKS
    if target >= 0:
        source = codes + target * CODEBOOKS
    is_text = tl.load(source + 1) < 0
    total = tl.zeros((BLOCK,), tl.float32)
    if is_text:
        token = tl.load(source).to(tl.int64)
        total += tl.load(text_table + token * width + column, mask=inside, other=0.0).to(tl.float32)
    else:
        for codebook in tl.static_range(CODEBOOKS):
            code = (tl.load(source + codebook) + codebook * audio_vocab).to(tl.int64)
            total += tl.load(audio_table + code * width + column, mask=inside, other=0.0).to(tl.float32)
    value = total.to(hidden.dtype.element_ty)
    tl.store(hidden + row.to(tl.int64) * width + column, value, mask=inside)
    _store_square(squares, squares_stride, row, value.to(tl.float32), PARTS)


def embed(
    row_target: torch.Tensor,
    row_ids: torch.Tensor,
    codes: torch.Tensor,
    text_table: torch.Tensor,
    audio_table: torch.Tensor,
    hidden: torch.Tensor,
    squares: torch.Tensor,
    num_rows: torch.Tensor,
    parts: int,
    chained: bool = False,
) -> None:
    """Fill `hidden` (rows, width) and its sums of squares.

    A row takes the ids of its target frame, `codes[row_target]`, or where `row_target` is -1 those of `row_ids`; both
    are int32 (…, codebooks). A text id is marked by -1 behind it.
    """
    codebooks = codes.shape[1]
    width = hidden.shape[1]
    _embed[(len(hidden),)](
        row_target,
        row_ids,
        codes,
        text_table,
        audio_table,
        hidden,
        squares,
        squares.stride(0),
        num_rows,
        width,
        len(audio_table) // codebooks,
        CODEBOOKS=codebooks,
        PARTS=parts,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
        CHAINED=chained,
        launch_pdl=chained,
    )


@triton.jit
def _sum_squares(
    hidden,
    squares,
    squares_stride,
    num_rows_at,
    width,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    row = tl.program_id(0)
    if row >= tl.load(num_rows_at):
        return
    column = tl.arange(0, BLOCK)
    value = tl.load(hidden + row.to(tl.int64) * width + column, mask=column < width, other=0.0).to(tl.float32)
    _store_square(squares, squares_stride, row, value, PARTS)


def sum_squares(
    hidden: torch.Tensor, squares: torch.Tensor, num_rows: torch.Tensor, parts: int, chained: bool = False
) -> None:
    """Fill `squares` float32 (parts, rows) for residual rows that came from elsewhere than an ADDED product."""
    width = hidden.shape[1]
    _sum_squares[(len(hidden),)](
        hidden,
        squares,
        squares.stride(0),
        num_rows,
        width,
        PARTS=parts,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
        CHAINED=chained,
        launch_pdl=chained,
    )


@triton.jit
def _guide(
    hidden,
    squares,
    squares_stride,
    cond_rows,
    uncond_rows,
    target_request,
    guidance,
    out,
    num_rows_at,
    num_targets_at,
    width,
    eps,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    target = tl.program_id(0)
    if target >= tl.load(num_targets_at):
        return
    num_rows = tl.load(num_rows_at)
    column = tl.arange(0, BLOCK)
    inside = column < width
    lane = tl.arange(0, 1)
    cond = tl.load(cond_rows + target)
    uncond = tl.load(uncond_rows + target)
    scale = tl.sum(row_scale(squares, cond + lane, num_rows, squares_stride, PARTS, width, eps), axis=0)
    value = tl.load(hidden + cond.to(tl.int64) * width + column, mask=inside, other=0.0).to(tl.float32) * scale
    if uncond >= 0:
        weight = tl.load(guidance + tl.load(target_request + target))
        scale = tl.sum(row_scale(squares, uncond + lane, num_rows, squares_stride, PARTS, width, eps), axis=0)
        other = tl.load(hidden + uncond.to(tl.int64) * width + column, mask=inside, other=0.0).to(tl.float32) * scale
        value = value * (1.0 + weight) - other * weight
    tl.store(out + target.to(tl.int64) * width + column, value.to(out.dtype.element_ty), mask=inside)


def guide(
    hidden: torch.Tensor,
    squares: torch.Tensor,
    cond_rows: torch.Tensor,
    uncond_rows: torch.Tensor,
    target_request: torch.Tensor,
    guidance: torch.Tensor,
    out: torch.Tensor,
    num_rows: torch.Tensor,
    num_targets: torch.Tensor,
    parts: int,
    eps: float,
    chained: bool = False,
) -> None:
    """Fill `out` (targets, width) with (1 + g) · cond − g · uncond of the last layer's normed rows.

    The heads are linear: guiding their input gives what guiding their logits would, at half the product. A target whose
    `uncond_rows` is -1 has no second branch. The norm's weight is folded into the heads.
    """
    width = hidden.shape[1]
    _guide[(len(out),)](
        hidden,
        squares,
        squares.stride(0),
        cond_rows,
        uncond_rows,
        target_request,
        guidance,
        out,
        num_rows,
        num_targets,
        width,
        eps,
        PARTS=parts,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
        CHAINED=chained,
        launch_pdl=chained,
    )
