"""What advances the running chunks by a step: eagerly, or by replaying a CUDA graph.

Membership changes between steps, by `set_runs`; what a run has unmasked travels with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from omnivoice.batch import Batch
from omnivoice.chunk_run import ChunkRun
from omnivoice.config import EngineConfig
from omnivoice.model.backbone import Backbone
from omnivoice.model.cpu import CpuBackbone, fits_cpu
from omnivoice.team import Team

log = logging.getLogger(__name__)


class Executor(Protocol):
    """Runs chunks packed together. One thread uses it."""

    backbone: Backbone

    def set_runs(self, runs: Sequence[ChunkRun]) -> None:
        """Change the membership; runs that are new begin, or go on where they were left."""

    def step(self) -> None:
        """Unmask the next cells of every run and count the step in each.

        On `torch.cuda.OutOfMemoryError` nothing has changed, so the step can be repeated.
        """

    def codes(self, run: ChunkRun) -> torch.Tensor:
        """Return the codes (frames, 8) of a run of the batch, on the device; masked cells hold the mask's id."""

    def warm_up(self) -> None:
        """Do once what would hold up the first step."""


class EagerExecutor:
    """One packed forward pass a step, op by op: on any device, in any dtype, of any size."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._runs: tuple[ChunkRun, ...] = ()
        self._batch: Batch | None = None

    def set_runs(self, runs: Sequence[ChunkRun]) -> None:
        if self._batch is not None:
            self._batch.store()
            self._batch = None
        self._runs = tuple(runs)

    def step(self) -> None:
        with self.backbone.team.led():
            if self._batch is None:
                self._batch = Batch(self.backbone, self._runs)
            self._batch.step()
        for run in self._runs:
            run.step += 1

    def codes(self, run: ChunkRun) -> torch.Tensor:
        if self._batch is not None:
            self._batch.store()
        assert run.codes is not None
        return run.codes

    def warm_up(self) -> None:
        pass


class FittingExecutor:
    """`fast` for the batches that fit it, `slow` for the rest."""

    def __init__(self, fast: Executor, slow: Executor, fits: Callable[[Sequence[ChunkRun]], bool]) -> None:
        self._fast = fast
        self._slow = slow
        self._fits = fits
        self._current = fast
        self.backbone = fast.backbone

    def set_runs(self, runs: Sequence[ChunkRun]) -> None:
        chosen = self._fast if self._fits(runs) else self._slow
        if chosen is not self._current:
            self._current.set_runs([])
            self._current = chosen
        chosen.set_runs(runs)

    def step(self) -> None:
        self._current.step()

    def codes(self, run: ChunkRun) -> torch.Tensor:
        return self._current.codes(run)

    def warm_up(self) -> None:
        self._fast.warm_up()


def pick_executor(backbone: Backbone, config: EngineConfig) -> Executor:
    """Return the fastest executor for the device; the pick is made once, and logged."""
    if backbone.heads.device.type == "cuda" and config.graphs:
        # Triton is there where CUDA is, and only there.
        from omnivoice.graph.executor import GraphExecutor, supports  # noqa: PLC0415

        if supports(backbone.config):
            log.info("executor: CUDA graphs")
            graph = GraphExecutor.of(backbone, config)
            return FittingExecutor(graph, EagerExecutor(graph.backbone), graph.fits)
    if config.fp8:
        raise ValueError("fp8: this model's sizes are none that the kernels can run")
    log.info("executor: eager")
    if not fits_cpu(backbone):
        return EagerExecutor(backbone)
    return EagerExecutor(CpuBackbone(backbone, Team.of_threads(torch.get_num_threads())))
