"""A layer's products over packed rows on Hopper (`product.cu`), with what comes before and after them folded in.

Row r of a product is `activations[r] @ weight.T`. How norms are folded and what `squares` holds is told in
`omnivoice.kernels.products`.

| kind | result |
| --- | --- |
| PLAIN | the product, in float32 |
| HEADS | the product of RMS-normed rows; query and key heads are RMS-normed by head and rotated, queries scaled |
| GATED | SwiGLU of a product of RMS-normed rows: in `weight` groups of 8 rows of gate and up projection take turns |
| ADDED | the product is added to the residual rows in place; their sums of squares go to `squares` for the next norm |

Operands are of 16 bits, or e4m3: then with a scale a row, of the activations (what a norm does to one included) and of
the weight.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from omnivoice.kernels.attention import query_scale
from omnivoice.kernels.hopper.compiler import HEAD_DIM, PANEL, ROW_BYTES, Kernel, pointer, tensor_map, wgmma

PLAIN = 0
HEADS = 1
GATED = 2
ADDED = 3


class HopperTile(NamedTuple):
    """Rows (64 or 128) and columns (64, 128 or 256) of a block's tile, slots of its ring of operands."""

    rows: int
    columns: int
    stages: int
    split: int = 1
    """Blocks, 1 or 2, that share a tile's depth: where there are fewer tiles than processors."""
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
        ("row_scales", ctypes.c_void_p),
        ("column_scales", ctypes.c_void_p),
        ("plain", ctypes.c_void_p),
        ("columns", ctypes.c_int),
    )


class HopperProduct:
    """A product whose tensors and tile are fixed, as a graph needs it: `launch` enqueues it and does nothing else.

    `activations` (rows, depth), `weight` (columns, depth; twice the columns where GATED), `out` (rows, columns): all of
    one 16-bit dtype, except that `out` is float32 where PLAIN, and that operands can be e4m3 with `scales`, float32 of
    the activations' rows (rows, 1) and of the weight's (1, columns). `num_rows` int32 on the device: tiles beyond it
    are not computed, but rows of a 16-bit `out` beyond it, up to the next whole tile, may be overwritten. `squares`
    float32 (parts, rows): `parts` of them are read, or where ADDED one a column tile is written. `chained` places it
    while its predecessor ends, when it already fetches weights.
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
        scales: tuple[torch.Tensor, torch.Tensor] | None = None,
        chained: bool = False,
    ) -> None:
        rows, depth = activations.shape
        column_tiles, remainder = divmod(len(weight), tile.columns)
        slot_depth = ROW_BYTES // activations.element_size()
        if depth % (slot_depth * tile.split) or (remainder and kind != PLAIN):
            raise ValueError(
                f"a weight of {tuple(weight.shape)} is not cut into tiles of {tile.columns} x {slot_depth}"
            )
        column_tiles += bool(remainder)
        if kind == ADDED and column_tiles > len(squares):
            raise ValueError(f"squares has room for {len(squares)} parts, the tile makes {column_tiles}")
        self.parts = column_tiles
        """Parts of the sums of squares that an ADDED product writes."""
        extras = _Extras(
            squares=squares.data_ptr(), squares_stride=squares.stride(0), parts=parts, width=depth, eps=eps
        )
        if scales is not None:
            extras.row_scales, extras.column_scales = scales[0].data_ptr(), scales[1].data_ptr()
        if kind == PLAIN:
            extras.plain, extras.columns = out.data_ptr(), out.shape[1]
        if rotation is not None:
            for name in ("position", "cos", "sin", "query_norm", "key_norm"):
                setattr(extras, name, getattr(rotation, name).data_ptr())
            extras.num_heads, extras.num_kv_heads = rotation.num_heads, rotation.num_kv_heads
            extras.query_scale = query_scale(HEAD_DIM)
        blocks = -(-rows // tile.rows) * column_tiles * tile.split
        if tile.persistent:
            blocks = min(blocks, torch.cuda.get_device_properties(activations.device).multi_processor_count)
        # The kernel knows their addresses only.
        self._held = (activations, weight, out, squares, num_rows, rotation, scales)
        self._kernel = Kernel(
            "product",
            constants(kind, tile, activations.dtype, out.dtype),
            wgmma("multiply", tile.columns, activations.dtype),
            (
                tensor_map(activations, tile.rows),
                tensor_map(weight, tile.columns),
                tensor_map(activations if kind == PLAIN else out, PANEL),  # float32 is stored without TMA
                pointer(num_rows),
                ctypes.c_int(column_tiles),
                ctypes.c_int(depth // slot_depth),
                extras,
            ),
            (blocks, 1),
            2 * tile.rows + 128,
            memory(kind, tile),
            chained,
            cluster=tile.split,
        )

    def launch(self) -> None:
        self._kernel.launch()


def memory(kind: int, tile: HopperTile) -> int:
    """Bytes of shared memory: the ring, results on their way out, barriers."""
    staged = {PLAIN: 0, HEADS: HEAD_DIM, GATED: tile.columns // 2, ADDED: tile.columns}[kind]
    numbers = tile.stages * (tile.rows + tile.columns) * PANEL + tile.rows * staged
    partial = 0 if tile.split == 1 else tile.rows * tile.columns * 4
    return 2 * numbers + partial + (2 * tile.stages + 4) * 8


def constants(kind: int, tile: HopperTile, dtype: torch.dtype, out: torch.dtype) -> dict[str, int]:
    """What product.cu leaves open, for operands of `dtype` and results of `out`."""
    return {
        "KIND": kind,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "STAGES": tile.stages,
        "SPLIT": tile.split,
        # Few column tiles: blocks that share activations then run at once, and those are read from memory once.
        "ROWS_FIRST": int(kind != ADDED),
        "IS_FP8": int(dtype.itemsize == 1),
        "IS_BF16": int(out == torch.bfloat16),
    }
