"""Full attention inside each packed sequence, with everything between its products: QK-norm, rotary embedding, softmax.

The work is cut into items on the host: a stretch of queries of one sequence each. The grid is an upper bound of their
number, not longest sequence × sequences: empty sequences cost nothing, and lengths may change under a captured graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from omnivoice.kernels.products import start_behind


class Blocks(NamedTuple):
    """Query rows of a program (heads of a group included), keys that it looks at at a time, warps, pipeline stages."""

    rows: int = 128
    keys: int = 64
    warps: int = 8
    stages: int = 1
    registers: int | None = None
    """Bound a thread, so that more programs share a processor."""


BLOCKS = Blocks()


@triton.jit
def _halves(pointers, inside, d, half: tl.constexpr):
    """Load rows of a head as two tiles, the halves of its columns."""
    within = inside[:, None] & (d < half)[None, :]
    first = tl.load(pointers[:, None] + d[None, :], mask=within, other=0.0)
    second = tl.load(pointers[:, None] + half + d[None, :], mask=within, other=0.0)
    return first, second


@triton.jit
def _angles(cos, sin, positions, inside, d, half: tl.constexpr):
    at = positions[:, None] * half + d[None, :]
    within = inside[:, None] & (d < half)[None, :]
    return tl.load(cos + at, mask=within, other=0.0), tl.load(sin + at, mask=within, other=0.0)


@triton.jit
def _rotated(first, second, c, s, norm, d, eps, half: tl.constexpr):
    """RMS-norm rows given as two halves, and rotate them by their positions' angles; float32."""
    first, second = first.to(tl.float32), second.to(tl.float32)
    c, s = c.to(tl.float32), s.to(tl.float32)
    square = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    scale = tl.rsqrt(square / (2 * half) + eps)[:, None]
    first *= scale * tl.load(norm + d, mask=d < half, other=0.0).to(tl.float32)[None, :]
    second *= scale * tl.load(norm + half + d, mask=d < half, other=0.0).to(tl.float32)[None, :]
    return first * c - second * s, second * c + first * s


@triton.jit
def _attend(
    qkv,
    out,
    items,
    num_items_at,
    q_norm,
    k_norm,
    cos,
    sin,
    eps,
    log2_scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEYS_READY: tl.constexpr,
    PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    if item >= tl.load(num_items_at):
        return
    start = tl.load(items + item * 3)
    length = tl.load(items + item * 3 + 1)
    offset = tl.load(items + item * 3 + 2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    DIM: tl.constexpr = 2 * HALF
    STRIDE: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    dtype = qkv.dtype.element_ty
    d = tl.arange(0, BLOCK_HALF)
    columns = tl.arange(0, 2 * BLOCK_HALF)
    key_base = qkv + HEADS * DIM + kv_head * DIM
    value_base = key_base + KV_HEADS * DIM

    # The heads of a group share keys and values: their queries are stacked, head after head.
    index = tl.arange(0, BLOCK_Q * GROUP)
    position = offset + index % BLOCK_Q
    head = kv_head * GROUP + index // BLOCK_Q
    is_query = position < length
    row = (start + position).to(tl.int64)
    first, second = _halves(qkv + row * STRIDE + head * DIM, is_query, d, HALF)
    c, s = _angles(cos, sin, position, is_query, d, HALF)
    first, second = _rotated(first, second, c, s, q_norm, d, eps, HALF)
    first = (first * log2_scale).to(dtype)
    second = (second * log2_scale).to(dtype)

    highest = tl.full((BLOCK_Q * GROUP,), -float("inf"), tl.float32)
    weight_sum = tl.zeros((BLOCK_Q * GROUP,), tl.float32)
    mixed = tl.zeros((BLOCK_Q * GROUP, 2 * BLOCK_HALF), tl.float32)
    for n in range(0, length, BLOCK_N):
        key_position = n + tl.arange(0, BLOCK_N)
        is_key = key_position < length
        key_row = (start + key_position).to(tl.int64) * STRIDE
        key_first, key_second = _halves(key_base + key_row, is_key, d, HALF)
        value_mask = is_key[:, None] & (columns < DIM)[None, :]
        values = tl.load(value_base + key_row[:, None] + columns[None, :], mask=value_mask, other=0.0)
        if not KEYS_READY:
            key_c, key_s = _angles(cos, sin, key_position, is_key, d, HALF)
            key_first, key_second = _rotated(key_first, key_second, key_c, key_s, k_norm, d, eps, HALF)
        scores = tl.dot(first, key_first.to(dtype).T, input_precision=PRECISION)
        scores = tl.dot(second, key_second.to(dtype).T, scores, input_precision=PRECISION)
        scores = tl.where(is_key[None, :], scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        weight_sum = weight_sum * shrink + tl.sum(weights, axis=1)
        mixed = tl.dot(weights.to(dtype), values, mixed * shrink[:, None], input_precision=PRECISION)
        highest = new_highest
    mixed = mixed / weight_sum[:, None]
    out_pointers = out + (row * (HEADS * DIM) + head * DIM)[:, None] + columns[None, :]
    tl.store(out_pointers, mixed.to(dtype), mask=is_query[:, None] & (columns < DIM)[None, :])


@triton.jit
def _prepare_heads(
    heads,
    position,
    num_rows_at,
    norm,
    cos,
    sin,
    eps,
    factor,
    num_heads,
    stride,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    row = tl.program_id(0)
    if row >= tl.load(num_rows_at):
        return
    head = tl.arange(0, BLOCK_HEADS)
    d = tl.arange(0, HALF)
    is_head = head < num_heads
    pointers = heads + row.to(tl.int64) * stride + head * (2 * HALF)
    first, second = _halves(pointers, is_head, d, HALF)
    c, s = _angles(cos, sin, tl.load(position + row) + head * 0, is_head, d, HALF)
    first, second = _rotated(first, second, c, s, norm, d, eps, HALF)
    at = pointers[:, None] + d[None, :]
    tl.store(at, (first * factor).to(heads.dtype.element_ty), mask=is_head[:, None])
    tl.store(at + HALF, (second * factor).to(heads.dtype.element_ty), mask=is_head[:, None])


def prepare_heads(
    heads: torch.Tensor,
    position: torch.Tensor,
    num_rows: torch.Tensor,
    norm: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    factor: float = 1.0,
    chained: bool = False,
) -> None:
    """Norm, rotate and scale heads in place, once, where many programs of `attend` would each do it for their own.

    `heads` (rows, heads · head_dim) are columns of the product's result, whose stride they have. `position` int32
    (rows,) is each row's place in its sequence; `num_rows` int32 on the device says how many count; the rest is as in
    `attend`.
    """
    head_dim = norm.shape[0]
    num_heads = heads.shape[1] // head_dim
    _prepare_heads[(len(heads),)](
        heads,
        position,
        num_rows,
        norm,
        cos,
        sin,
        eps,
        factor,
        num_heads,
        heads.stride(0),
        HALF=head_dim // 2,
        BLOCK_HEADS=triton.next_power_of_2(num_heads),
        num_warps=2 if num_heads <= 8 else 4,
        CHAINED=chained,
        launch_pdl=chained,
    )


def query_scale(head_dim: int) -> float:
    """What queries are multiplied by: softmax's own scale, and what makes its exponents those of two."""
    return math.log2(math.e) / math.sqrt(head_dim)


def queries_per_item(num_heads: int, num_kv_heads: int, blocks: Blocks = BLOCKS) -> int:
    """Positions of one sequence that an item of work covers."""
    return blocks.rows // (num_heads // num_kv_heads)


def supports(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether the kernel can run these sizes: groups and halves of heads must be powers of two."""
    group, half = num_heads // num_kv_heads, head_dim // 2
    return group & (group - 1) == 0 and group <= BLOCKS.rows // 16 and half & (half - 1) == 0 and half <= 128


def attend(
    qkv: torch.Tensor,
    out: torch.Tensor,
    items: torch.Tensor,
    num_items: torch.Tensor,
    max_items: int,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
    blocks: Blocks = BLOCKS,
    keys_ready: bool = False,
    chained: bool = False,
) -> None:
    """Fill `out` (rows, heads · head_dim) from `qkv` (rows, (heads + 2 · kv_heads) · head_dim).

    `items` int32 (max_items, 3) holds first row and length of a sequence, and the first query's position; `num_items`
    int32 on the device says how many count. `cos` and `sin` are (positions, head_dim / 2).
    With `keys_ready` the keys have been through `prepare_heads`.
    """
    head_dim = q_norm.shape[0]
    half = head_dim // 2
    _attend[(num_kv_heads, max_items)](
        qkv,
        out,
        items,
        num_items,
        q_norm,
        k_norm,
        cos,
        sin,
        eps,
        query_scale(head_dim),
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HALF=half,
        BLOCK_HALF=max(16, half),  # the matrix units take no fewer columns
        BLOCK_Q=queries_per_item(num_heads, num_kv_heads, blocks),
        BLOCK_N=blocks.keys,
        KEYS_READY=keys_ready,
        PRECISION="ieee",
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        maxnreg=blocks.registers,
        CHAINED=chained,
        launch_pdl=chained,
    )
