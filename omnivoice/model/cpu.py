"""The backbone for a CPU: the same function in fewer passes over memory, most of them in place.

At these sizes a CPU pays for each pass over the rows, and for each fresh megabyte, as much as for the products.
`Backbone.forward` is the slow twin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from omnivoice.model.backbone import Backbone, Layer, apart
from omnivoice.model.config import ModelConfig
from omnivoice.packing import Packing


@dataclass(frozen=True, slots=True)
class CpuLayer:
    """Weights of one layer as `torch.mm` takes them, (in, out), with the norms of the rows multiplied in.

    In the query and key heads of `qkv` and of `qk_norm` (heads + kv_heads, head_dim) the two axes of each rotary plane
    lie side by side. `gate_up` is all of the gate, then all of the up projection.
    """

    qkv: torch.Tensor
    qk_norm: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(cls, layer: Layer, config: ModelConfig) -> CpuLayer:
        num_heads, num_kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        root = math.sqrt(config.hidden_size)
        qk, value = (layer.qkv * layer.input_norm * root).split(
            [(num_heads + num_kv_heads) * width, num_kv_heads * width]
        )
        norms = torch.stack([layer.q_norm] * num_heads + [layer.k_norm] * num_kv_heads)
        return cls(
            qkv=torch.cat([_in_planes(qk, width), value]).T,
            qk_norm=_in_planes(norms.flatten(), width).view_as(norms) * math.sqrt(width),
            out=layer.out.T,
            gate_up=torch.cat(apart((layer.gate_up * layer.ffn_norm * root).T), dim=1),
            down=layer.down.T,
        )


class CpuBackbone(Backbone):
    """In float32 or float64, without gradients. It shares the embedding tables with the backbone it is made from."""

    def __init__(self, backbone: Backbone) -> None:
        config = self.config = backbone.config
        self.attention = backbone.attention
        self.text_table, self.audio_table, self.offsets = backbone.text_table, backbone.audio_table, backbone.offsets
        self.heads = backbone.heads * backbone.norm * math.sqrt(config.hidden_size)
        self._row_floor, self._head_floor = (
            self.heads.new_tensor(math.sqrt(width * config.rms_norm_eps))
            for width in (config.hidden_size, config.head_dim)
        )
        self._layers = tuple(CpuLayer.of(layer, config) for layer in backbone.layers)

    def forward(self, hidden: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Run all layers over packed rows (T, hidden) and return them at length one: the last norm is in the heads."""
        hidden = hidden.clone()
        turns = torch.complex(*self.rotary(packing.positions, hidden.dtype))[:, None]
        for layer in self._layers:
            hidden.addmm_(self._mixed(layer, hidden, turns, packing), layer.out)
            hidden.addmm_(self._gated(layer, hidden), layer.down)
        return self._unit(hidden)

    def _mixed(self, layer: CpuLayer, hidden: torch.Tensor, turns: torch.Tensor, packing: Packing) -> torch.Tensor:
        config = self.config
        heads = torch.mm(self._unit(hidden), layer.qkv).unflatten(1, (-1, config.head_dim))
        query_key = heads[:, : config.num_heads + config.num_kv_heads]
        query_key.div_(_lengths(query_key, self._head_floor)).mul_(layer.qk_norm)
        torch.view_as_complex(query_key.unflatten(2, (-1, 2))).mul_(turns)
        query, key, value = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        return self.attention(query, key, value, packing).flatten(1)

    def _gated(self, layer: CpuLayer, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = torch.mm(self._unit(hidden), layer.gate_up).chunk(2, dim=1)
        functional.silu(gate, inplace=True)
        gate.mul_(up)
        return gate

    def _unit(self, rows: torch.Tensor) -> torch.Tensor:
        return rows / _lengths(rows, self._row_floor)


def _lengths(x: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return √n times the divisor of the root-mean-square norm over the last axis of n, which stays, as one.

    `floor` () is √(n · epsilon).
    """
    return torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor)


def fits_cpu(backbone: Backbone) -> bool:
    """Whether a `CpuBackbone` can be made of it: it is on a CPU, and torch has complex numbers of its dtype."""
    return backbone.heads.device.type == "cpu" and backbone.heads.dtype in (torch.float32, torch.float64)


def _in_planes(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Reorder the rows of heads of `width` from all first axes, all second axes to plane after plane."""
    planes = rows.view(-1, 2, width // 2, *rows.shape[1:])
    return planes.transpose(1, 2).flatten(0, 2)
