"""What the GPU tests share: full-size random weights, written once a run, and the graphs of an engine."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import torch

from bench.random_checkpoint import SIZES, write_checkpoint
from omnivoice import Engine
from omnivoice.executor import FittingExecutor
from omnivoice.graph.executor import GraphExecutor

_SCRATCH: list[tempfile.TemporaryDirectory[str]] = []
"""Removed when the interpreter ends."""


@cache
def published_checkpoint() -> Path:
    """A checkpoint of the published size, bfloat16: it takes eight seconds to write."""
    _SCRATCH.append(tempfile.TemporaryDirectory(prefix="published-"))
    folder = Path(_SCRATCH[-1].name)
    write_checkpoint(folder, SIZES["published"], torch.bfloat16)
    return folder


def graph_of(engine: Engine) -> GraphExecutor:
    """The executor that replays graphs; fails where the engine has none."""
    executor = engine._executor
    assert isinstance(executor, FittingExecutor)
    assert isinstance(executor._fast, GraphExecutor)
    return executor._fast
