"""Matrix products over packed rows, with what comes before and after them folded in.

Row r of a product is `activations[r] @ weight.T`. Three kinds are all that a layer needs:

| kind | result |
| --- | --- |
| SCALED | the product of RMS-normed rows: the norm's weight is folded into `weight`, its scale goes onto the result |
| GATED | SwiGLU of a SCALED product: in `weight` groups of 8 rows of the gate and of the up projection take turns |
| ADDED | the product is added to the residual rows in place; their sums of squares go to `squares` for the next norm |
| PLAIN | the product itself |

Norms need no pass of their own that way: whoever writes residual rows leaves the sum of squares of each row, a part a
column tile, in `squares` (parts, rows), and whoever reads them adds the parts up. No atomics: the order is fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

PLAIN = tl.constexpr(0)
SCALED = tl.constexpr(1)
GATED = tl.constexpr(2)
ADDED = tl.constexpr(3)


class Tile(NamedTuple):
    """Rows, columns and depth that a program multiplies at a time, and how the compiler is to pipeline that."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int
    persistent: bool = False
    """A program for each processor, which takes tile after tile; else a program for each tile."""


@triton.jit
def row_scale(squares, rows, num_rows, stride, parts: tl.constexpr, hidden, eps):
    """1 / RMS of residual rows, from the parts of their sums of squares."""
    total = tl.zeros(rows.shape, tl.float32)
    for part in tl.static_range(parts):
        total += tl.load(squares + part * stride + rows, mask=rows < num_rows, other=0.0)
    return tl.rsqrt(total / hidden + eps)


@triton.jit
def start_behind(CHAINED: tl.constexpr):
    """Let the next kernel's programs be placed already, and wait until all that ran before has written its results."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _product(
    activations,
    weight,
    out,
    squares,
    squares_stride,
    num_rows_at,
    weight_rows,
    columns,
    depth,
    eps,
    KIND: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FLATTEN: tl.constexpr,
    PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    num_rows = tl.load(num_rows_at)
    tiles_m = tl.cdiv(num_rows, BLOCK_M)
    num_tiles = tiles_m * tl.cdiv(weight_rows, BLOCK_N)
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=FLATTEN):
        m = (tile % tiles_m) * BLOCK_M
        n = (tile // tiles_m) * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, depth, BLOCK_K):
            total = tl.dot(activations.load([m, k]), weight.load([n, k]).T, total, input_precision=PRECISION)
        rows = m + tl.arange(0, BLOCK_M)
        if KIND == SCALED or KIND == GATED:  # noqa: SIM109  Triton knows no `in`
            total *= row_scale(squares, rows, num_rows, squares_stride, PARTS, depth, eps)[:, None]
        if KIND == GATED:
            # Gate and up of a column lie 8 apart, in registers of one thread: nothing moves.
            pairs = tl.permute(tl.reshape(total, (BLOCK_M, BLOCK_N // 16, 2, 8)), (0, 1, 3, 2))
            gate, up = tl.split(pairs)
            total = tl.reshape(gate / (1.0 + tl.exp(-gate)) * up, (BLOCK_M, BLOCK_N // 2))
            column = n // 2 + tl.arange(0, BLOCK_N // 2)
        else:
            column = n + tl.arange(0, BLOCK_N)
        pointers = out + rows.to(tl.int64)[:, None] * columns + column[None, :]
        inside = (rows < num_rows)[:, None] & (column < columns)[None, :]
        if KIND == ADDED:
            before = tl.load(pointers, mask=inside, other=0.0)
            added = (total + before.to(tl.float32)).to(out.dtype.element_ty)
            tl.store(pointers, added, mask=inside)
            wide = added.to(tl.float32)
            sums = tl.sum(wide * wide, axis=1)
            tl.store(squares + (n // BLOCK_N) * squares_stride + rows, sums, mask=rows < num_rows)
        else:
            tl.store(pointers, total.to(out.dtype.element_ty), mask=inside)


class Product:
    """A product whose tensors and tile are fixed, as a graph needs it: `launch` enqueues it and does nothing else.

    `activations` (rows, depth), `weight` (columns, depth; twice the columns where GATED), `out` (rows, columns) in the
    activations' dtype, or float32 where PLAIN. `num_rows` is an int32 on the device: rows beyond it are not computed.
    `squares` float32 (parts, rows): read where SCALED or GATED (`parts` of them), written where ADDED.
    """

    def __init__(
        self,
        kind: tl.constexpr,
        activations: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        squares: torch.Tensor,
        num_rows: torch.Tensor,
        tile: Tile,
        *,
        parts: int = 1,
        eps: float = 0.0,
        chained: bool = False,
    ) -> None:
        columns = out.shape[1]
        self.parts = triton.cdiv(len(weight), tile.columns)
        """Parts of the sums of squares that an ADDED product writes."""
        if kind.value == ADDED.value and self.parts > len(squares):
            raise ValueError(f"squares has room for {len(squares)} parts, the tile makes {self.parts}")
        self._tile = tile
        num_tiles = triton.cdiv(len(activations), tile.rows) * self.parts
        programs = num_processors(activations.device) if tile.persistent else num_tiles
        self._programs = min(num_tiles, programs)
        self._arguments = (
            TensorDescriptor.from_tensor(activations, [tile.rows, tile.depth]),
            TensorDescriptor.from_tensor(weight, [tile.columns, tile.depth]),
            out,
            squares,
            squares.stride(0),
            num_rows,
            len(weight),
            columns,
            activations.shape[1],
            eps,
        )
        self._constants = {
            "KIND": kind,
            "PARTS": parts,
            "BLOCK_M": tile.rows,
            "BLOCK_N": tile.columns,
            "BLOCK_K": tile.depth,
            "FLATTEN": tile.persistent,
            "CHAINED": chained,
            "launch_pdl": chained,
            # Without "ieee" Triton multiplies float32 in TF32; shorter floats are not touched by it.
            "PRECISION": "ieee",
            "num_stages": tile.stages,
            "num_warps": tile.warps,
        }

    def launch(self) -> None:
        _product[(self._programs,)](*self._arguments, **self._constants)


def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; a small number where the interpreter runs the kernels."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
