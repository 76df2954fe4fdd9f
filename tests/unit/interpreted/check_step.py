"""The whole step by kernels against the eager batch, on the golden checkpoint in float32: the same codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import interpreter  # noqa: F401  first: it mends what the kernels run on
import numpy as np
import torch

from omnivoice.attention import SdpaAttention
from omnivoice.chunk_run import ChunkRun
from omnivoice.executor import EagerExecutor, Executor
from omnivoice.graph.executor import GraphExecutor
from omnivoice.graph.graphs import Graphs
from omnivoice.graph.program import Buffers, build_program
from omnivoice.graph.tables import Capacity
from omnivoice.graph.tiles import WIDE
from omnivoice.kernels.attention import Blocks
from omnivoice.model.backbone import Backbone
from omnivoice.parameters import SamplingParams

CHECKPOINT = Path(__file__).parents[2] / "golden" / "checkpoint"
CPU = torch.device("cpu")


def runs() -> list[ChunkRun]:
    """Short ones, one with a voice, one without guidance, with numbers of steps and temperatures of their own."""
    voice = np.random.default_rng(0).integers(0, 1024, (8, 9))
    return [
        ChunkRun("a", 0, [5, 9, 11], None, 4, SamplingParams(num_step=2, class_temperature=0.5), seed=2**64 - 9),
        ChunkRun("b", 2, [7, 8], voice, 8, SamplingParams(num_step=3), seed=3),
        ChunkRun("c", 0, [1, 2, 3, 4], None, 3, SamplingParams(num_step=3, guidance_scale=0.0), seed=4),
        ChunkRun("d", 1, [1], None, 5, SamplingParams(num_step=2, position_temperature=0.0), seed=5),
    ]


def in_step_mode(executor: Executor, made: list[ChunkRun]) -> list[torch.Tensor]:
    """A run joins before each of the first steps and leaves after its own last; the second sits one step out."""
    waiting, running = list(made), []
    codes = {}
    executed = 0
    executor.set_runs(made)  # and changed before a step was taken: who has not begun has nothing to keep
    while waiting or running:
        if waiting:
            running.append(waiting.pop(0))
            executor.set_runs(running)
        executor.step()
        executed += 1
        done = [run for run in running if run.is_done]
        for run in done:
            codes[run.request_id] = executor.codes(run)
        if done:
            running = [run for run in running if not run.is_done]
        if executed == 3:
            waiting.insert(1, running.pop(1))
        if done or executed == 3:
            executor.set_runs(running)
    return [codes[run.request_id] for run in made]


def test_the_same_codes_as_eager() -> None:
    backbone = Backbone.from_folder(CHECKPOINT, CPU, torch.float32, SdpaAttention())
    capacity = Capacity(64, 4)
    folded = backbone.folded()
    # A file that is mapped into memory need not lie at multiples of 16 bytes, as what is copied to a device does.
    folded.layers = tuple(replace(layer, out=layer.out.clone(), down=layer.down.clone()) for layer in folded.layers)
    buffers = Buffers.of(folded, capacity)
    tiles = {32: WIDE, 64: WIDE._replace(prepares_keys=True, down=None, attention=Blocks(64, 64))}
    graphs = Graphs(
        lambda bucket: build_program(folded, buffers, bucket, tiles[bucket]), (32, 64), buffers.tables["sizes"],
        may_capture=lambda: False,
    )  # fmt: skip
    expected = in_step_mode(EagerExecutor(backbone), runs())
    found = in_step_mode(GraphExecutor(folded, buffers, graphs, tiles.__getitem__), runs())
    assert 32 in graphs
    assert 64 in graphs
    for ours, theirs in zip(found, expected, strict=True):
        assert int(ours.max()) < 1024
        assert float((ours == theirs).float().mean()) >= 0.98
