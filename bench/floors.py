"""The floors: the layers' matrix products alone, in one CUDA graph, at the rows that a batch has.

No engine that computes these products can be faster than this with the same library's kernels: embedding, attention,
norms, head and sampling are left out, and so is quantising for fp8. The four products of a layer read and write
buffers of their own width; each layer has its own weights, as they do not fit the cache together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from bench.peers.protocol import Work
from omnivoice.model.config import ModelConfig


class Product(NamedTuple):
    """One matrix product of a layer: (rows, inner) times (inner, outer)."""

    inner: int
    outer: int


def products_of_layer(config: ModelConfig) -> tuple[Product, ...]:
    """The fused query/key/value, the output, the fused gate/up and the down projection."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return (
        Product(config.hidden_size, query + 2 * key),
        Product(query, config.hidden_size),
        Product(config.hidden_size, 2 * config.intermediate_size),
        Product(config.intermediate_size, config.hidden_size),
    )


@dataclass(slots=True)
class Floor:
    """A contender of the benchmark that only multiplies: `kind` "bf16" (cuBLAS) or "fp8" (rowwise `_scaled_mm`).

    `count_rows` tells the packed rows of a piece of work. On a CPU "bf16" stands for float32 without a graph: the code
    runs there, the figure means nothing.
    """

    name: str
    kind: str
    config: ModelConfig
    device: torch.device
    count_rows: Callable[[Work], int]
    _weights: list[list[Callable[[torch.Tensor, torch.Tensor], None]]] | None = None
    _graph: tuple[int, Callable[[], None]] | None = None

    @torch.inference_mode()
    def run(self, work: Work, untimed: int = 0) -> float:
        """Seconds that all steps' products take, after `untimed` other runs."""
        rows = self.count_rows(work)
        if self._graph is None or self._graph[0] != rows:
            self._graph = None  # the old one's buffers go first
            self._graph = (rows, self._capture(rows))
        replay = self._graph[1]
        for _ in range(untimed * work.num_step):
            replay()
        self._synchronize()
        start = time.perf_counter()
        for _ in range(work.num_step):
            replay()
        self._synchronize()
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _capture(self, rows: int) -> Callable[[], None]:
        """Return a function that runs one step's products."""
        shapes = products_of_layer(self.config)
        if self._weights is None:
            self._weights = [[self._multiplier(shape) for shape in shapes] for _ in range(self.config.num_layers)]
        weights = self._weights
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        inputs = [torch.randn(rows, shape.inner, device=self.device, dtype=dtype) for shape in shapes]
        outputs = [torch.empty(rows, shape.outer, device=self.device, dtype=dtype) for shape in shapes]
        if self.kind == "fp8":
            inputs = [tensor.to(torch.float8_e4m3fn) for tensor in inputs]

        def step() -> None:
            for layer in weights:
                for multiply, source, target in zip(layer, inputs, outputs, strict=True):
                    multiply(source, target)

        step()
        if self.device.type != "cuda":
            return step
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

        def replay(held: tuple[list[torch.Tensor], ...] = (inputs, outputs)) -> None:
            """The graph reads and writes `held`: without these references their memory would be given to others."""
            graph.replay()

        return replay

    def _multiplier(self, shape: Product) -> Callable[[torch.Tensor, torch.Tensor], None]:
        weight = torch.randn(shape.outer, shape.inner, device=self.device) * shape.inner**-0.5
        if self.kind == "fp8":
            return _fp8_multiplier(weight)
        weight = weight.to(torch.bfloat16 if self.device.type == "cuda" else torch.float32)

        def multiply(source: torch.Tensor, target: torch.Tensor) -> None:
            torch.mm(source, weight.T, out=target)

        return multiply


def _fp8_multiplier(weight: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Rowwise scales: one a row of the activations, one an output column."""
    scales = weight.abs().amax(dim=1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    quantised = (weight / scales).to(torch.float8_e4m3fn)
    column_scales = scales.T.contiguous()
    row_scales: dict[int, torch.Tensor] = {}  # by rows: made in the first, eager step, outside of any capture

    def multiply(source: torch.Tensor, target: torch.Tensor) -> None:
        rows = len(source)
        if rows not in row_scales:
            row_scales.clear()
            row_scales[rows] = torch.ones(rows, 1, device=source.device)
        torch._scaled_mm(
            source,
            quantised.T,
            scale_a=row_scales[rows],
            scale_b=column_scales,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
            out=target,
        )

    return multiply


def floors(config: ModelConfig, device: torch.device, count_rows: Callable[[Work], int]) -> list[Floor]:
    """The floors that this device can measure."""
    kinds = ["bf16"]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        kinds.append("fp8")
    return [Floor(f"floor {kind}", kind, config, device, count_rows) for kind in kinds]
