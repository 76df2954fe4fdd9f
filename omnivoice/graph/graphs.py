"""One graph a token bucket: a ladder of buckets, common ones captured at start, the others when they are met."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger(__name__)

SMALLEST_BUCKET = 256
RUNGS_PER_DOUBLING = 2
WIDEST_RUNG = 256
"""Our kernels compute no rows beyond those that count, so a coarse ladder would do for them; the library's products
compute the whole bucket."""

MAX_GRAPHS = 96

Program = list[Callable[[], object]]


def ladder(largest: int) -> tuple[int, ...]:
    """Return the buckets up to `largest` rows, ascending; the last one is `largest`."""
    rungs, rung = [], SMALLEST_BUCKET
    while rung < largest:
        rungs.append(rung)
        doubled = 1 << (rung.bit_length() - 1)
        rung += min(doubled // RUNGS_PER_DOUBLING, WIDEST_RUNG)
    return (*rungs, largest)


class Graphs:
    """Captured steps by bucket, the `max_graphs` used last.

    `build` makes the launches of a step for a bucket. Where `may_capture` says no (no memory is left for it, or there
    is no CUDA) they are run one by one.
    """

    def __init__(
        self,
        build: Callable[[int], Program],
        buckets: tuple[int, ...],
        sizes: torch.Tensor,
        *,
        may_capture: Callable[[], bool],
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        self.buckets = buckets
        self.num_captures = 0
        self._build = build
        self._sizes = sizes
        self._max_graphs = max_graphs
        self._may_capture = may_capture
        self._graphs: OrderedDict[int, Callable[[], None]] = OrderedDict()
        self._pool: Any = None

    def __contains__(self, bucket: int) -> bool:
        return bucket in self._graphs

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds `rows`. Raises `ValueError` above the largest."""
        for bucket in self.buckets:
            if rows <= bucket:
                return bucket
        raise ValueError(f"{rows} rows are over the largest bucket, {self.buckets[-1]}")

    def prepare(self, rows: int) -> None:
        """Have a graph for `rows` ready. It may be captured now, for which the tables' sizes are set to zero."""
        bucket = self.bucket(rows)
        if bucket in self._graphs:
            self._graphs.move_to_end(bucket)
            return
        self._graphs[bucket] = self._made(bucket)
        if len(self._graphs) > self._max_graphs:
            self._graphs.popitem(last=False)

    def replay(self, rows: int) -> None:
        """Enqueue one step for a batch of `rows`, which `prepare` was called for."""
        self._graphs[self.bucket(rows)]()

    def _made(self, bucket: int) -> Callable[[], None]:
        program = self._build(bucket)

        def run() -> None:
            for launch in program:
                launch()

        if not self._may_capture():
            return run
        start = time.perf_counter()
        # With nothing to do, the kernels are compiled and loaded, which a capture must not do, and change nothing.
        self._sizes.zero_()
        run()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Not `torch.cuda.graph`: it collects garbage first, which takes a second where much is loaded. Other threads
        # (the finisher) may allocate meanwhile, hence "thread_local".
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            run()
        finally:
            graph.capture_end()
        self.num_captures += 1
        log.info("captured the step for %d rows in %.0f ms", bucket, (time.perf_counter() - start) * 1e3)

        def replay() -> None:
            graph.replay()

        replay.program = program  # type: ignore[attr-defined]  # its tensors must outlive the graph
        return replay
