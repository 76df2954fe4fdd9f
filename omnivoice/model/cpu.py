"""The backbone for a CPU: the same function in fewer passes over memory, most of them in place.

At these sizes a CPU pays for each pass over the rows, and for each fresh megabyte, as much as for the products.
`Backbone.forward` is the slow twin.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from omnivoice.model.backbone import Backbone, Layer, apart
from omnivoice.model.config import ModelConfig
from omnivoice.packing import Packing
from omnivoice.team import Team


class Span(NamedTuple):
    """Rows that lie in one sequence, and all rows of that sequence."""

    rows: slice
    sequence: slice


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
    """In float32 or float64, without gradients. It shares the embedding tables with the backbone it is made from.

    A team of two divides the rows evenly, wherever that cuts a sequence. Each thread takes its own through all layers,
    and meets the other once a layer for keys and values.
    """

    def __init__(self, backbone: Backbone, team: Team | None = None) -> None:
        config = self.config = backbone.config
        self.team = team or Team()
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
        # Two that take turns: who is a layer ahead does not write where the other still reads.
        heads = [hidden.new_empty(len(hidden), self.config.qkv_width) for _ in range(2)]
        bounds = [len(hidden) * part // self.team.size for part in range(self.team.size + 1)]

        def work(part: int, meet: Callable[[], None]) -> None:
            rows = slice(bounds[part], bounds[part + 1])
            spans = _spans(packing.lengths, rows)
            memory = [Memory.of(self.config, hidden[rows], turns[rows], each, rows, spans) for each in heads]
            for index, layer in enumerate(self._layers):
                self._find_heads(layer, memory[index % 2])
                meet()
                self._mix(layer, memory[index % 2])
                self._feed(layer, memory[index % 2])
            self._unit(memory[0], out=hidden[rows])

        self.team.run(work)
        return hidden

    def _find_heads(self, layer: CpuLayer, rows: Memory) -> None:
        """Fill in queries and keys, normed and rotated, and values."""
        torch.mm(self._unit(rows), layer.qkv, out=rows.heads)
        rows.query_key.div_(_lengths(rows.query_key, self._head_floor)).mul_(layer.qk_norm)
        rows.planes.mul_(rows.turns)

    def _mix(self, layer: CpuLayer, rows: Memory) -> None:
        """Add what the rows attend to."""
        if not rows.sequences:  # fewer rows than threads
            return
        parts = [
            functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
            for query, key, value in rows.sequences
        ]
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        rows.hidden.addmm_(mixed.transpose(1, 2).reshape(-1, self.config.query_width), layer.out)

    def _feed(self, layer: CpuLayer, rows: Memory) -> None:
        """Add the feed-forward block."""
        torch.mm(self._unit(rows), layer.gate_up, out=rows.gate_up)
        functional.silu(rows.gate, inplace=True)
        rows.hidden.addmm_(rows.gate.mul_(rows.up), layer.down)

    def _unit(self, rows: Memory, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows at length one, in `out` or in memory that the next call takes."""
        out = rows.unit if out is None else out
        return torch.div(rows.hidden, _lengths(rows.hidden, self._row_floor), out=out)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a thread's rows (n) are computed in, and views of it.

    `heads` is (n, qkv_width), `query_key` its (n, heads + kv_heads, head_dim) and `planes` that as complex numbers;
    `sequences` has query, key and value (1, heads, rows, head_dim) for every sequence that the rows lie in.

    Making one takes Python's lock about as long as an operation does, and the other thread waits: all are made before
    the first layer.
    """

    hidden: torch.Tensor
    unit: torch.Tensor
    turns: torch.Tensor
    heads: torch.Tensor
    query_key: torch.Tensor
    planes: torch.Tensor
    sequences: tuple[tuple[torch.Tensor, ...], ...]
    gate_up: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        hidden: torch.Tensor,
        turns: torch.Tensor,
        all_heads: torch.Tensor,
        rows: slice,
        spans: Sequence[Span],
    ) -> Memory:
        heads = all_heads[rows]
        query_key = heads[:, : config.query_width + config.key_width].unflatten(1, (-1, config.head_dim))
        query, key, value = (
            part.unflatten(1, (-1, config.head_dim)).transpose(0, 1)[None]
            for part in all_heads.split([config.query_width, config.key_width, config.key_width], dim=1)
        )
        gate_up = hidden.new_empty(len(hidden), 2 * config.intermediate_size)
        gate, up = gate_up.chunk(2, dim=1)
        return cls(
            hidden=hidden,
            unit=torch.empty_like(hidden),
            turns=turns,
            heads=heads,
            query_key=query_key,
            planes=torch.view_as_complex(query_key.unflatten(2, (-1, 2))),
            sequences=tuple(
                (query[:, :, span.rows], key[:, :, span.sequence], value[:, :, span.sequence]) for span in spans
            ),
            gate_up=gate_up,
            gate=gate,
            up=up,
        )


def _spans(lengths: Sequence[int], rows: slice) -> list[Span]:
    """Cut a stretch of packed rows where sequences end."""
    bounds = [0, *itertools.accumulate(lengths)]
    sequences = [slice(start, end) for start, end in itertools.pairwise(bounds)]
    spans = [Span(slice(max(one.start, rows.start), min(one.stop, rows.stop)), one) for one in sequences]
    return [span for span in spans if span.rows.start < span.rows.stop]


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
