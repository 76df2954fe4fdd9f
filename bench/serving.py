"""A serving trace against the engine in process: who waits how long, at which load, in which mode.

python -m bench.serving --out bench/results/serving-2026-11-30.json

Closed loops: so many clients, each sends its next text when its last is done. Open: Poisson arrivals at a rate. Texts
have mixed lengths, the same for every trace. Latency runs from arrival to the result, decoded and post-processed; the
wait for a window is in it, by the worker's own rule (`worker.window`). HTTP, queue and storage are not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.arrivals import Arrivals
from bench.peers.ours import MODES, checkpoint_of_size
from bench.plot import markdown, percentile
from bench.record import circumstances, write
from bench.texts import mixed_texts
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest, SynthesisResult
from omnivoice.parameters import FRAME_RATE
from worker.window import Candidate, Load, WindowLimits, gather

IDLE_SLEEP_SECONDS = 0.0005
ALL_TOKENS = 1 << 60
"""The engine bounds a batch's rows itself; the window only counts requests."""


@dataclass(slots=True)
class Trace:
    """What one run measured. Times in seconds from its start; `batches` the largest batch each request was part of."""

    mode: str
    load: str
    arrived: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    audio_seconds: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    gpu_busy_percent: float | None = None

    def figures(self, warm_up: float) -> dict[str, Any]:
        """Latencies in milliseconds of requests that arrived after `warm_up` seconds; rates over the same time.

        Rates count what ended while requests still came: the tail, when the last ones drain, is not full load.
        """
        latencies = [
            (end - start) * 1e3 for start, end in zip(self.arrived, self.ended, strict=True) if start >= warm_up
        ]
        until = max(self.arrived, default=0.0)
        span = until - warm_up
        counted = [audio for end, audio in zip(self.ended, self.audio_seconds, strict=True) if warm_up <= end <= until]
        if not latencies or not counted:
            return {"mode": self.mode, "load": self.load, "requests": 0, "failures": len(self.failures)}
        return {
            "mode": self.mode,
            "load": self.load,
            "requests": len(latencies),
            "failures": len(self.failures),
            "mean_ms": round(statistics.fmean(latencies), 1),
            **{f"p{percent}_ms": round(percentile(latencies, percent), 1) for percent in (50, 95, 99)},
            "audio_s_per_s": round(sum(counted) / span, 1),
            "requests_per_s": round(len(counted) / span, 2),
            "mean_batch": round(statistics.fmean(self.batches), 1),
            "mean_window": round(statistics.fmean(self.windows), 1) if self.windows else None,
            "gpu_busy_percent": self.gpu_busy_percent,
        }


class Server:
    """The worker's loop without the worker: windows in mode "request", joining between steps in mode "step"."""

    def __init__(self, engine: Engine, limits: WindowLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._is_step_mode = engine.config.mode == "step"

    def run(
        self,
        arrivals: Arrivals,
        requests: Iterator[SynthesisRequest],
        trace: Trace,
        on_result: Callable[[int, SynthesisResult], None] | None = None,
    ) -> None:
        """Serve until nothing comes any more and all have ended; `on_result` gets each result with its number."""
        started = time.perf_counter()
        waiting: list[float] = []  # arrival times, oldest first
        in_flight: dict[str, float] = {}
        generating: set[str] = set()
        has_results = threading.Event()
        self._engine.notify_finished(has_results.set)
        count = 0
        while True:
            now = time.perf_counter() - started
            waiting += arrivals.due(now)
            window = self._window(waiting, now, is_free=not generating)
            for _ in range(window):
                name = str(count)
                in_flight[name] = waiting.pop(0)
                self._engine.add_request(name, next(requests))
                generating.add(name)
                count += 1
            if window and not self._is_step_mode:
                trace.windows.append(window)
            if generating or has_results.is_set():
                has_results.clear()
                results = self._engine.step()
                generating.difference_update(self._engine.take_generated(), (name for name, _ in results))
                now = time.perf_counter() - started
                for name, result in results:
                    self._note(trace, in_flight.pop(name), now, result)
                    if on_result is not None:
                        on_result(int(name), result)
                    arrivals.on_result(now)
            elif not (in_flight or waiting) and arrivals.are_over:
                self._engine.notify_finished(None)
                return
            else:
                time.sleep(IDLE_SLEEP_SECONDS)

    def _window(self, waiting: Sequence[float], now: float, *, is_free: bool) -> int:
        """How many of those that wait start now. In mode "step" all: the engine itself bounds what runs."""
        if self._is_step_mode:
            return len(waiting)
        if not is_free or not waiting:
            return 0
        window = gather([Candidate(time_, 1) for time_ in waiting], self._limits, Load())
        return len(window.members) if window.closes_at <= now else 0

    @staticmethod
    def _note(trace: Trace, arrived: float, ended: float, result: SynthesisResult) -> None:
        if result.error is not None:
            trace.failures.append(str(result.error))
            return
        pieces = result.codes if isinstance(result.codes, list) else [result.codes]
        trace.arrived.append(arrived)
        trace.ended.append(ended)
        trace.audio_seconds.append(
            sum(piece.shape[1] for piece in pieces if isinstance(piece, np.ndarray)) / FRAME_RATE
        )
        trace.batches.append(result.batch_size)


def requests_of(texts: Iterator[str], num_step: int) -> Iterator[SynthesisRequest]:
    params = SamplingParams(num_step=num_step)
    return (SynthesisRequest(text, "en", seed=seed, params=params) for seed, text in enumerate(texts))


@contextmanager
def gpu_busy(trace: Trace, is_cuda: bool) -> Iterator[None]:
    """Put into `trace` the share of time in which some kernel ran, as nvidia-smi samples it five times a second."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0", "-lms", "200"]
    try:
        sampler = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if is_cuda else None
    except OSError:
        sampler = None
    try:
        yield
    finally:
        if sampler is not None:
            sampler.terminate()
            lines = [line.strip() for line in sampler.communicate()[0].splitlines()]
            samples = [int(line) for line in lines if line.isdecimal()]
            trace.gpu_busy_percent = round(statistics.fmean(samples), 1) if samples else None


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, a line a trace."""
    columns = {
        "mode": "mode",
        "load": "load",
        "requests": "requests",
        "mean_ms": "mean ms",
        "p50_ms": "p50",
        "p95_ms": "p95",
        "p99_ms": "p99",
        "requests_per_s": "requests/s",
        "audio_s_per_s": "audio-s/s",
        "mean_window": "window fill",
        "mean_batch": "batch",
        "gpu_busy_percent": "GPU busy, %",
        "failures": "failed",
    }
    cells = [["–" if row.get(key) is None else str(row[key]) for key in columns] for row in rows]
    return markdown(list(columns.values()), cells)


def run(arguments: argparse.Namespace, folder: Path) -> list[Trace]:
    limits = WindowLimits(arguments.max_wait_ms / 1e3, arguments.max_batch_requests, ALL_TOKENS)
    traces = []
    for mode in arguments.modes.split(","):
        options = MODES["fp32" if arguments.device == "cpu" else arguments.precision]
        config = EngineConfig(
            device=arguments.device, mode=mode, max_batch_requests=arguments.max_batch_requests, **options
        )
        engine = Engine.from_checkpoint(folder, config)
        server = Server(engine, limits)
        end = arguments.warm_up + arguments.duration
        server.run(
            Arrivals.closed_loop(arguments.max_batch_requests, arguments.warm_up),
            requests_of(mixed_texts(1), arguments.num_step),
            Trace(mode, "warm-up"),
        )
        loads: list[tuple[str, Arrivals]] = [
            (f"{clients} clients", Arrivals.closed_loop(int(clients), end))
            for clients in arguments.clients.split(",")
            if clients
        ]
        loads += [
            (f"{rate} a second", Arrivals.poisson(float(rate), end)) for rate in arguments.rates.split(",") if rate
        ]
        for load, arrivals in loads:
            trace = Trace(mode, load)
            with gpu_busy(trace, arguments.device == "cuda"):
                server.run(arrivals, requests_of(mixed_texts(0), arguments.num_step), trace)
            traces.append(trace)
            print(json.dumps(trace.figures(arguments.warm_up)), flush=True)
        del engine, server
    return traces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--modes", default="request,step", help="comma-separated, of request and step")
    parser.add_argument("--clients", default="1,4,8,16,40,64", help="closed loops")
    parser.add_argument("--rates", default="5,15,30,45", help="Poisson arrivals a second")
    parser.add_argument("--duration", type=float, default=8.0, help="seconds a trace, after its warm-up")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds at the start of a trace that do not count")
    parser.add_argument("--max-wait-ms", type=float, default=20.0, help="how long a window may stay open")
    parser.add_argument("--max-batch-requests", type=int, default=32)
    parser.add_argument("--num-step", type=int, default=32)
    parser.add_argument("--precision", choices=MODES, default="bf16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("published", "medium", "golden"), default="published")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        traces = run(arguments, checkpoint_of_size(arguments.size, Path(scratch)))
    figures = [trace.figures(arguments.warm_up) for trace in traces]
    results = {
        **circumstances("bench.serving", arguments.device),
        "figures": figures,
    }
    write(arguments.out, results)
    print(f"\n{results['device']}, torch {results['torch']}, {results['date']}\n")
    print(table(figures))


if __name__ == "__main__":
    main()
