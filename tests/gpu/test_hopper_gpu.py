"""The kernels for Hopper against float32 on the same device: all tiles, both dtypes, part-filled batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from omnivoice.graph.fp8 import FP8, Weight
from omnivoice.graph.tiles import HOPPER_FP8_UP_TO, HOPPER_LARGE, HOPPER_ONE, HOPPER_SMALL, HOPPER_TILED, Tiles
from omnivoice.kernels.fp8 import LARGEST
from omnivoice.kernels.hopper import compiler
from omnivoice.kernels.hopper.attention import QUERIES, HopperAttention
from omnivoice.kernels.hopper.product import ADDED, GATED, HEADS, PLAIN, HopperProduct, HopperTile, Rotation
from omnivoice.model.backbone import apart

CUDA = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and compiler.supports(CUDA, torch.bfloat16)), reason="needs a Hopper GPU"
    ),
]
EPS = 1e-6
TOLERANCE = {torch.bfloat16: 3e-3, torch.float16: 5e-4, FP8: 3e-3}
"""Relative error of a tensor: rounding its elements alone makes half of it."""
HIDDEN, QUERY, KEY, FFN = 1024, 2048, 1024, 3072


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def number(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32, device=CUDA)


def normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def run(
    kind: int, tile: HopperTile, rows: int, num_rows: int, dtype: torch.dtype, chained: bool
) -> tuple[float, float]:
    """Relative errors of the result and of the sums of squares; operands are e4m3 where `dtype` is."""
    torch.manual_seed(kind)
    columns, depth = {
        PLAIN: (8 * 1025, HIDDEN), HEADS: (QUERY + 2 * KEY, HIDDEN), GATED: (2 * FFN, HIDDEN), ADDED: (HIDDEN, FFN),
    }[kind]  # fmt: skip
    narrow = dtype == FP8
    result_dtype = torch.bfloat16 if narrow else dtype
    x = torch.randn(rows, depth, device=CUDA).to(result_dtype)
    weight = (torch.randn(columns, depth, device=CUDA) * 0.02).to(result_dtype)
    operands, scales, wide, wide_weight = (x, weight), None, x.float(), weight.float()
    squares = torch.zeros(16, rows, device=CUDA)
    squares[0], squares[1] = wide.square().sum(1) * 0.25, wide.square().sum(1) * 0.75
    if narrow:
        row_scales = wide.abs().amax(1, keepdim=True) / LARGEST
        quantised = Weight.of(weight)
        operands = ((wide / row_scales).to(FP8), quantised.values)
        norm = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
        wide, wide_weight = operands[0].float() * row_scales, quantised.wide(torch.float32)
        scales = (row_scales * norm if kind in (HEADS, GATED) else row_scales, quantised.scales)
    out = torch.randn(rows, FFN if kind == GATED else columns, device=CUDA)
    out = out if kind == PLAIN else out.to(result_dtype)
    before = out.float()
    position = (torch.arange(rows, device=CUDA) % 131).to(torch.int32)
    angles = torch.arange(200.0, device=CUDA)[:, None] * 1e6 ** -(torch.arange(0, 128, 2, device=CUDA) / 128)
    cos, sin = angles.cos().to(result_dtype), angles.sin().to(result_dtype)
    norms = [(1 + 0.1 * torch.randn(128, device=CUDA)).to(result_dtype) for _ in range(2)]
    rotation = Rotation(position, cos, sin, *norms, QUERY // 128, KEY // 128)
    made = HopperProduct(
        kind, *operands, out, squares, number(num_rows), tile, parts=2, eps=EPS, chained=chained,
        rotation=rotation if kind == HEADS else None, scales=scales,
    )  # fmt: skip
    made.launch()
    torch.cuda.synchronize()

    product = wide @ wide_weight.T
    if kind in (HEADS, GATED):
        product *= torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS)
    if kind == PLAIN:
        assert torch.equal(out[num_rows:], before[num_rows:])
        expected = product
    elif kind == ADDED:
        expected = product + before
    elif kind == GATED:
        gate, up = apart(product)
        expected = functional.silu(gate) * up
    else:
        query, key, value = product.view(rows, -1, 128).split([QUERY // 128, KEY // 128, KEY // 128], dim=1)
        at = position.long()
        turn = (cos.float()[at][:, None], sin.float()[at][:, None])
        query = rotated(normed(query) * norms[0].float(), *turn) * (math.log2(math.e) / math.sqrt(128))
        key = rotated(normed(key) * norms[1].float(), *turn)
        expected = torch.cat([query, key, value], 1).flatten(1)
    error = relative_error(out[:num_rows], expected[:num_rows])
    sums = out[:num_rows].float().square().sum(1)
    off = relative_error(squares[: made.parts, :num_rows].sum(0), sums) if kind == ADDED else 0.0
    return error, off


def check(tiles: Tiles, dtype: torch.dtype, *, heads: bool) -> None:
    kinds = [(HEADS, tiles.qkv), (ADDED, tiles.out), (GATED, tiles.gate_up), (ADDED, tiles.down)]
    kinds += [(PLAIN, tiles.heads)] if heads else []
    for kind, tile in kinds:
        if not isinstance(tile, HopperTile):
            continue
        for rows, num_rows in ((256, 230), (256, 1), (2048, 1840), (7424, 7296)):
            error, off = run(kind, tile, rows, num_rows, dtype, tiles.chained)
            assert error < TOLERANCE[dtype], (kind, tile, rows, num_rows)
            assert off < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tiles", [HOPPER_ONE, HOPPER_SMALL, HOPPER_TILED, HOPPER_LARGE])
def test_products(tiles: Tiles, dtype: torch.dtype) -> None:
    check(tiles, dtype, heads=True)


@pytest.mark.parametrize("tiles", dict.fromkeys(tiles for _, tiles in HOPPER_FP8_UP_TO))
def test_products_of_fp8(tiles: Tiles) -> None:
    """The result is rounded to bfloat16; the operands' rounding is on both sides."""
    check(tiles, FP8, heads=False)


def test_a_tile_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="not cut into tiles of 192 x 64"):
        run(ADDED, HopperTile(64, 192, 4), 256, 256, torch.bfloat16, False)
    with pytest.raises(ValueError, match="room for 16 parts, the tile makes 32"):
        run(ADDED, HopperTile(64, 32, 4), 256, 256, torch.bfloat16, False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [[1], [64, 1, 63, 65, 200, 700, 17], [126, 104] * 32])
def test_attention(lengths: list[int], dtype: torch.dtype) -> None:
    """Rows behind the last sequence are not finite: they neither come into a result nor are written."""
    torch.manual_seed(1)
    num_rows, rows = sum(lengths), sum(lengths) + 70
    qkv = torch.randn(rows, QUERY + 2 * KEY, device=CUDA).to(dtype)
    qkv[:, :QUERY] *= 0.4
    qkv[num_rows:] = torch.nan
    out = torch.full((rows, QUERY), 7.0, device=CUDA, dtype=dtype)
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    items = [(s, n, o) for s, n in zip(starts, lengths, strict=True) for o in range(0, n, QUERIES)]
    table = torch.tensor([*items, (10**6, 1, 0)], dtype=torch.int32, device=CUDA)
    HopperAttention(qkv, out, table, number(len(items)), len(table), QUERY // 128).launch()
    torch.cuda.synchronize()
    for start, length in zip(starts, lengths, strict=True):
        part = qkv[start : start + length].float().view(length, -1, 128).transpose(0, 1)
        query, key, value = part.split([QUERY // 128, KEY // 128, KEY // 128])
        key, value = (heads.repeat_interleave(2, dim=0) for heads in (key, value))
        weights = torch.softmax(query @ key.transpose(1, 2) * math.log(2), -1)
        expected = (weights @ value).transpose(0, 1).flatten(1)
        assert relative_error(out[start : start + length], expected) < TOLERANCE[dtype]
    assert bool((out[num_rows:] == 7.0).all())


def test_what_is_not_finite_stays_in_its_sequence() -> None:
    qkv = torch.randn(192, QUERY + 2 * KEY, device=CUDA).bfloat16()
    qkv[100, 0], qkv[101, QUERY + KEY] = torch.nan, torch.inf
    out = torch.zeros(192, QUERY, device=CUDA).bfloat16()
    table = torch.tensor([(0, 40, 0), (40, 64, 0), (104, 88, 0), (104, 88, 64)], dtype=torch.int32, device=CUDA)
    HopperAttention(qkv, out, table, number(4), 4, QUERY // 128).launch()
    torch.cuda.synchronize()
    assert bool(out[:40].isfinite().all())
    assert bool(out[104:].isfinite().all())
    assert not bool(out[40:104].isfinite().all())
