"""A layer's products over packed rows on Hopper (`product.cu`), with what comes before and after them folded in.

Row r of a product is `activations[r] @ weight.T`. How norms are folded and what `squares` holds is told in
`omnivoice.kernels.products`.

| kind | result |
| --- | --- |
| HEADS | the product of RMS-normed rows; query and key heads are RMS-normed by head and rotated, queries scaled |
| GATED | SwiGLU of a product of RMS-normed rows: in `weight` groups of 8 rows of gate and up projection take turns |
| ADDED | the product is added to the residual rows in place; their sums of squares go to `squares` for the next norm |
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from omnivoice.kernels.attention import query_scale
from omnivoice.kernels.hopper.compiler import HEAD_DIM, PANEL, Kernel, pointer, tensor_map, wgmma

HEADS = 1
GATED = 2
ADDED = 3


class HopperTile(NamedTuple):
    """Rows (64 or 128) and columns (64, 128 or 256) of a block's tile, slots of its ring of operands."""

    rows: int
    columns: int
    stages: int
    persistent: bool = False
    """A block for each processor, which takes tile after tile; else a block for each tile."""


class Rotation(NamedTuple):
    """What HEADS need beside the product: `position` int32 (rows,), `cos` and `sin` (positions, 64), norms (128,)."""

    position: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    query_norm: torch.Tensor
    key_norm: torch.Tensor
    num_heads: int
    num_kv_heads: int


class _Extras(ctypes.Structure):
    """`Extras` of product.cu."""

    _fields_ = (
        ("squares", ctypes.c_void_p),
        ("squares_stride", ctypes.c_int),
        ("parts", ctypes.c_int),
        ("width", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("position", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("num_heads", ctypes.c_int),
        ("num_kv_heads", ctypes.c_int),
        ("query_scale", ctypes.c_float),
    )


class HopperProduct:
    """A product whose tensors and tile are fixed, as a graph needs it: `launch` enqueues it and does nothing else.

    `activations` (rows, depth), `weight` (columns, depth; twice the columns where GATED), `out` (rows, columns): all of
    one 16-bit dtype. `num_rows` int32 on the device: tiles beyond it are not computed, but rows of `out` beyond it, up
    to the next whole tile, may be overwritten. `squares` float32 (parts, rows): `parts` of them are read, or where
    ADDED one a column tile is written. `chained` places it while its predecessor ends, when it already fetches weights.
    """

    def __init__(
        self,
        kind: int,
        activations: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        squares: torch.Tensor,
        num_rows: torch.Tensor,
        tile: HopperTile,
        *,
        parts: int = 1,
        eps: float = 0.0,
        rotation: Rotation | None = None,
        chained: bool = False,
    ) -> None:
        rows, depth = activations.shape
        column_tiles, remainder = divmod(len(weight), tile.columns)
        if remainder or depth % PANEL:
            raise ValueError(f"a weight of {tuple(weight.shape)} is not cut into tiles of {tile.columns} x {PANEL}")
        if kind == ADDED and column_tiles > len(squares):
            raise ValueError(f"squares has room for {len(squares)} parts, the tile makes {column_tiles}")
        self.parts = column_tiles
        """Parts of the sums of squares that an ADDED product writes."""
        extras = _Extras(
            squares=squares.data_ptr(), squares_stride=squares.stride(0), parts=parts, width=depth, eps=eps
        )
        if rotation is not None:
            for name in ("position", "cos", "sin", "query_norm", "key_norm"):
                setattr(extras, name, getattr(rotation, name).data_ptr())
            extras.num_heads, extras.num_kv_heads = rotation.num_heads, rotation.num_kv_heads
            extras.query_scale = query_scale(HEAD_DIM)
        blocks = -(-rows // tile.rows) * column_tiles
        if tile.persistent:
            blocks = min(blocks, torch.cuda.get_device_properties(activations.device).multi_processor_count)
        self._held = (activations, weight, out, squares, num_rows, rotation)  # the kernel knows their addresses only
        self._kernel = Kernel(
            "product",
            constants(kind, tile, activations.dtype),
            wgmma("multiply", tile.columns, activations.dtype),
            (
                tensor_map(activations, tile.rows),
                tensor_map(weight, tile.columns),
                tensor_map(out, PANEL),
                pointer(num_rows),
                ctypes.c_int(column_tiles),
                ctypes.c_int(depth // PANEL),
                extras,
            ),
            (blocks, 1),
            2 * tile.rows + 128,
            memory(kind, tile),
            chained,
        )

    def launch(self) -> None:
        self._kernel.launch()


def memory(kind: int, tile: HopperTile) -> int:
    """Bytes of shared memory: the ring, results on their way out, barriers."""
    staged = {HEADS: HEAD_DIM, GATED: tile.columns // 2, ADDED: tile.columns}[kind]
    numbers = tile.stages * (tile.rows + tile.columns) * PANEL + tile.rows * staged
    return 2 * numbers + (2 * tile.stages + 2) * 8


def constants(kind: int, tile: HopperTile, dtype: torch.dtype) -> dict[str, int]:
    """What product.cu leaves open."""
    return {
        "KIND": kind,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "STAGES": tile.stages,
        # Few column tiles: blocks that share activations then run at once, and those are read from memory once.
        "ROWS_FIRST": int(kind != ADDED),
        "IS_BF16": int(dtype == torch.bfloat16),
    }
