"""Full attention inside each packed sequence on Hopper (`attention.cu`): heads come normed, rotated and scaled."""

from __future__ import annotations

import torch

from omnivoice.kernels.hopper.compiler import HEAD_DIM, PANEL, Kernel, pointer, tensor_map, wgmma

QUERIES = 64
"""Positions of one sequence that an item of work covers."""
_GROUP = 2
_TILE_BYTES = QUERIES * HEAD_DIM * 2


def supports(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether the kernel can run these sizes."""
    return head_dim == HEAD_DIM and num_heads == _GROUP * num_kv_heads


class HopperAttention:
    """Fills `out` (rows, heads · 128) from `qkv` (rows, (heads + 2 · kv_heads) · 128), two heads a key head.

    `items` int32 (max_items, 3) holds first row and length of a sequence, and the first query's position; `num_items`
    int32 on the device says how many count. `launch` enqueues it and does nothing else.
    """

    def __init__(
        self,
        qkv: torch.Tensor,
        out: torch.Tensor,
        items: torch.Tensor,
        num_items: torch.Tensor,
        max_items: int,
        num_heads: int,
        chained: bool = False,
    ) -> None:
        self._held = (qkv, out, items, num_items)  # the kernel knows their addresses only
        self._kernel = Kernel(
            "attention",
            constants(num_heads, qkv.dtype),
            functions(qkv.dtype),
            (tensor_map(qkv, PANEL), pointer(out), pointer(items), pointer(num_items)),
            (num_heads // _GROUP, max_items),
            128 * _GROUP,
            # The queries of the group's heads, keys and values of the chunk at hand and the next; five barriers.
            (_GROUP + 2 * 2) * _TILE_BYTES + 5 * 8,
            chained,
        )

    def launch(self) -> None:
        self._kernel.launch()


def constants(num_heads: int, dtype: torch.dtype) -> dict[str, int]:
    """What attention.cu leaves open."""
    return {"NUM_HEADS": num_heads, "IS_BF16": int(dtype == torch.bfloat16)}


def functions(dtype: torch.dtype) -> str:
    keys = wgmma("multiply_keys", 64, dtype)
    return keys + wgmma("multiply_values", HEAD_DIM, dtype, rows_in_registers=True)
