"""The packed step by CUDA graph: tables uploaded when membership changes, then one replay a step, and no waiting."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch

from omnivoice.chunk_run import ChunkRun
from omnivoice.config import EngineConfig
from omnivoice.device import Mark
from omnivoice.graph.fp8 import QuantisedModel
from omnivoice.graph.graphs import Graphs, Program, ladder
from omnivoice.graph.program import Buffers, build_program
from omnivoice.graph.tables import Capacity, HostTables
from omnivoice.graph.tiles import Tiles, pick_tiles, supports_hopper
from omnivoice.kernels import attention
from omnivoice.model.backbone import Backbone
from omnivoice.model.config import ModelConfig

log = logging.getLogger(__name__)

STEPS_AHEAD = 2
"""Steps that are queued on the device behind the one that runs: enough that it never waits for the host, and few enough
that a chunk joins, leaves or is aborted almost at once."""


class GraphExecutor:
    """Implements `omnivoice.executor.Executor` for batches within the buffers' capacity."""

    def __init__(self, backbone: Backbone, buffers: Buffers, graphs: Graphs, tiles: Callable[[int], Tiles]) -> None:
        self.backbone = backbone
        self._buffers = buffers
        self._graphs = graphs
        self._tiles = tiles
        self._mask_id = backbone.config.audio_mask_id
        self._runs: tuple[ChunkRun, ...] = ()
        self._places: dict[int, int] = {}
        self._rows = 0
        self._is_current = True
        self._staging = Staging(buffers)
        self._pacer = Pacer(buffers.codes.device)

    @classmethod
    def of(cls, backbone: Backbone, config: EngineConfig) -> GraphExecutor:
        """Allocate the buffers that the config asks for, with all norms folded into the weights that follow them."""
        folded = backbone.folded()
        capacity = Capacity(config.max_batch_tokens, config.max_batch_requests)
        buffers = Buffers.of(folded, capacity, fp8=config.fp8)
        program: Callable[[Buffers, int, Tiles], Program] = partial(build_program, folded)
        if config.fp8:
            quantised = QuantisedModel(folded, capacity)
            folded, program = quantised.backbone, quantised.program
        device, dtype = folded.heads.device, folded.heads.dtype
        on_hopper = supports_hopper(folded.config, device, dtype)
        log.info(
            "a step's products and attention run by %s", "kernels for Hopper" if on_hopper else "Triton and cuBLAS"
        )
        tiles = partial(
            pick_tiles, dtype=dtype, deterministic=config.deterministic, on_hopper=on_hopper, fp8=config.fp8
        )
        graphs = Graphs(
            lambda bucket: program(buffers, bucket, tiles(bucket)),
            ladder(config.max_batch_tokens),
            buffers.tables["sizes"],
            may_capture=partial(_has_memory, device, config.memory_gib),
        )
        return cls(folded, buffers, graphs, tiles)

    def fits(self, runs: Sequence[ChunkRun]) -> bool:
        """Whether a batch is within the buffers' capacity."""
        capacity = self._buffers.capacity
        return len(runs) <= capacity.requests and sum(run.num_tokens for run in runs) <= capacity.rows

    def warm_up(self) -> None:
        """Capture the graphs of all buckets, the smallest first."""
        for bucket in self._graphs.buckets:
            self._graphs.prepare(bucket)

    def set_runs(self, runs: Sequence[ChunkRun]) -> None:
        for run in self._runs:
            if run not in runs and not run.is_done and id(run) in self._places:  # it goes on in a later batch
                run.codes = self.codes(run)
        self._runs = tuple(runs)
        self._places = {id(run): self._places[id(run)] for run in runs if id(run) in self._places}
        self._is_current = False

    def step(self) -> None:
        self._pacer.wait()
        if not self._is_current:
            self._lay_out()
        self._graphs.replay(self._rows)
        self._pacer.mark()
        for run in self._runs:
            run.step += 1

    def codes(self, run: ChunkRun) -> torch.Tensor:
        place = self._places.get(id(run))
        if place is None:
            assert run.codes is not None
            return run.codes
        return self._buffers.codes[place : place + run.frames].clone()

    @torch.inference_mode()
    def _lay_out(self) -> None:
        """Fill the tables and move every run's codes to its new place."""
        rows = sum(run.num_tokens for run in self._runs)
        self._graphs.prepare(rows)  # may capture, and run out of memory: nothing has changed yet
        model = self.backbone.config
        queries = self._tiles(self._graphs.bucket(rows)).queries(model.num_heads, model.num_kv_heads)
        targets = self._staging.upload(self._runs, self._places, queries)
        codes = self._buffers.codes
        if self._places:
            source = self._buffers.tables["source"][:targets]
            codes[:targets] = torch.where(source[:, None] >= 0, codes[source.clamp_min(0)], self._mask_id)
        else:
            codes[:targets] = self._mask_id
        self._places, place = {}, 0
        for run in self._runs:
            if run.codes is not None:
                codes[place : place + run.frames] = run.codes
                run.codes = None
            self._places[id(run)] = place
            place += run.frames
        self._rows = rows
        self._is_current = True


def supports(model: ModelConfig) -> bool:
    """Whether the kernels can run a model of these sizes."""
    is_aligned = all(size % 8 == 0 for size in (model.hidden_size, model.intermediate_size, model.head_dim))
    return is_aligned and attention.supports(model.num_heads, model.num_kv_heads, model.head_dim)


def _has_memory(device: torch.device, memory_gib: float | None) -> bool:
    return memory_gib is None or torch.cuda.memory_reserved(device) < memory_gib * 2**30


class Staging:
    """Host tables in turn, so that one is not written over while the device still copies it."""

    def __init__(self, buffers: Buffers, copies: int = STEPS_AHEAD + 2) -> None:
        self._device = buffers.tables
        self._hosts = deque((HostTables(buffers.capacity), Mark(buffers.codes.device)) for _ in range(copies))

    def upload(self, runs: Sequence[ChunkRun], places: dict[int, int], queries: int) -> int:
        """Lay `runs` out and enqueue the copy; return the number of target rows."""
        host, mark = self._hosts[0]
        self._hosts.rotate(-1)
        mark.wait()
        targets = host.fill(runs, places, queries)
        self._device.block.copy_(host.tables.block, non_blocking=True)
        mark.set()
        return targets


class Pacer:
    """Keeps the host a few steps ahead of the device."""

    def __init__(self, device: torch.device) -> None:
        self._marks = deque(Mark(device) for _ in range(STEPS_AHEAD + 1))

    def wait(self) -> None:
        self._marks[0].wait()

    def mark(self) -> None:
        self._marks[0].set()
        self._marks.rotate(-1)
