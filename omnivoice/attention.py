"""Full attention inside each packed sequence, never across: one small interface, two backends.

The backend is picked once, when the engine starts, and logged.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn import functional

from omnivoice.packing import Packing

log = logging.getLogger(__name__)


class Attention(Protocol):
    """Grouped-query attention over packed rows.

    `query` is (T, heads, head_dim), `key` and `value` (T, kv_heads, head_dim); returns (T, heads, head_dim).
    """

    name: str

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing
    ) -> torch.Tensor: ...


class SdpaAttention:
    """torch's scaled dot-product attention, a sequence at a time: no padded mask, exact on every device and dtype.

    Each is a batch of one, because torch has fused kernels for four axes only.
    """

    name = "sdpa"

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing) -> torch.Tensor:
        parts = [
            functional.scaled_dot_product_attention(
                q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], enable_gqa=True
            )[0].transpose(0, 1)
            for q, k, v in zip(*(torch.split(x, list(packing.lengths)) for x in (query, key, value)), strict=True)
            if len(q)
        ]
        return torch.cat(parts)


class VarlenAttention:
    """torch's `varlen_attn` (FlashAttention): all sequences in one launch. CUDA, float16 or bfloat16 only."""

    name = "varlen"

    def __init__(self) -> None:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - absent before torch 2.10

        # torch 2.11 groups heads by itself and knows no such argument; later versions want to be told.
        grouped = "enable_gqa" in inspect.signature(varlen_attn).parameters
        options: dict[str, Any] = {"enable_gqa": True} if grouped else {}
        self._attend: Callable[..., Any] = partial(varlen_attn, **options)

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing) -> torch.Tensor:
        offsets, longest = packing.cu_seqlens, packing.max_length
        out: torch.Tensor = self._attend(query, key, value, offsets, offsets, longest, longest)
        return out


def pick_attention(device: torch.device, dtype: torch.dtype) -> Attention:
    """Return the fastest backend that is exact for this device and dtype."""
    chosen: Attention
    if device.type == "cuda" and dtype in (torch.float16, torch.bfloat16):
        chosen = VarlenAttention()
    else:
        chosen = SdpaAttention()
    log.info("attention backend: %s (%s, %s)", chosen.name, device, dtype)
    return chosen
