"""The whole product under load on one machine, beside the engine alone: what HTTP, queue and object store cost.

python -m bench.service --out bench/results/service-2026-11-30.json
python -m bench.service --out bench/results/queue-2026-11-30.json --synthesizer tone --clients 1

Redis, the S3 server, the API and a worker a GPU are started as `make up` starts them, in a folder of their own, and
stopped at the end. First the engine in this process turns texts into WAV files. Then the product is saturated: jobs are
sent as fast as they are done. Then closed loops: each client submits, waits in a long poll and fetches its audio.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from bench.peers.ours import OurEngine, checkpoint_of_size, make_work
from bench.peers.process import PeerFailed
from bench.peers.protocol import FRAME_RATE, Work
from bench.plot import Summary
from bench.record import circumstances, write
from bench.service_clients import Caller, CallFailed, Loop
from bench.service_figures import CpuMeter, loop_figures, report, saturated_figures
from bench.service_product import Product, environ_of, measure, say
from bench.serving import Trace, gpu_busy
from bench.texts import SENTENCE_SECONDS
from infra.local.interruption import interruptible
from infra.local.stack import Stack
from infra.local.state import locked
from worker.jobs.ledger import JobRecord

QUEUED_WINDOWS = 6
"""Unfinished jobs a worker while it is saturated, in windows: it takes three into its hands, the rest waits."""
FEEDERS = 8
NUM_FETCHED = 64
"""Finished jobs whose audio is fetched and compared with its record after a saturated run."""


class Bench:
    """The measurements over a product that runs. `seconds_each` is the audio that every job generates."""

    def __init__(self, product: Product, work: Work, arguments: argparse.Namespace) -> None:
        self._product = product
        self._work = work
        self._arguments = arguments
        self._seconds_each = work.frames / FRAME_RATE

    def _body(self, index: int) -> dict[str, Any]:
        work = self._work
        body = {"text": work.texts[index % len(work.texts)], "language": work.language, "duration": work.duration}
        return body | {"seed": index, "num_step": work.num_step}

    def saturated(self, workers: int) -> dict[str, Any]:
        """Keep the queue filled over HTTP for the warm-up and the time that counts; then cancel what is left."""
        ledger, arguments = self._product.ledger, self._arguments
        num_wanted = QUEUED_WINDOWS * arguments.max_batch_requests * workers
        ids: list[str] = []
        begin = time.time() + arguments.warm_up
        with self._metered(begin) as meter, ThreadPoolExecutor(FEEDERS) as pool:
            callers = threading.local()

            def submit(index: int) -> str:
                if not hasattr(callers, "mine"):
                    callers.mine = Caller()
                answer = callers.mine.call("POST", f"{self._product.address}/v1/jobs", self._body(index))[2]
                return str(json.loads(answer)["id"])

            while time.time() < begin + arguments.seconds:
                missing = num_wanted - sum(ledger.depth().values())
                ids += pool.map(submit, range(len(ids), len(ids) + max(0, missing)))
                time.sleep(0.005)
        end = begin + arguments.seconds
        records = [record for record in map(ledger.get, ids) if record is not None]
        figures = {"workers": workers} | saturated_figures(records, begin, end, self._seconds_each) | meter
        figures["fetched"] = self._fetch_some(records)
        self._clear([record.id for record in records if not record.status.is_final])
        return figures

    def loop(self, clients: int) -> dict[str, Any]:
        loop = Loop(self._product.address, self._body)
        begin = time.time() + self._arguments.warm_up
        with self._metered(begin) as meter:
            loop.run(clients, self._arguments.warm_up + self._arguments.seconds)
        end = begin + self._arguments.seconds
        return loop_figures(loop.visits, clients, begin, end, self._seconds_each) | {"failures": loop.failures} | meter

    @contextlib.contextmanager
    def _metered(self, begin: float) -> Iterator[dict[str, Any]]:
        """Fills what it gives with the GPU's and the processes' load from `begin` on, once the block has ended."""
        found: dict[str, Any] = {}
        trace = Trace("", "")
        meters: list[CpuMeter] = []
        timer = threading.Timer(begin - time.time(), lambda: meters.append(CpuMeter(self._product.pids)))
        timer.start()
        try:
            with gpu_busy(trace, self._arguments.device == "cuda"):
                yield found
        finally:
            timer.cancel()
        found |= {"gpu_busy_percent": trace.gpu_busy_percent, "cpu": meters[0].cores() if meters else {}}

    def _fetch_some(self, records: Sequence[JobRecord]) -> int:
        """How many finished jobs, picked at random, gave the audio that their records tell of: all, or `CallFailed`."""
        done = [record for record in records if record.result is not None]
        chosen = random.Random(0).sample(done, min(NUM_FETCHED, len(done)))
        caller = Caller()
        for record in chosen:
            assert record.result is not None
            caller.audio(f"{self._product.address}/v1/jobs/{record.id}/audio", record.result.model_dump())
        return len(chosen)

    def _clear(self, ids: Sequence[str]) -> None:
        for job_id in ids:
            self._product.ledger.cancel(job_id)
        deadline = time.monotonic() + self._product.settings.drain_seconds + self._product.settings.lease_seconds
        while sum(self._product.ledger.depth().values()):
            if time.monotonic() > deadline:
                raise CallFailed(f"{self._product.ledger.depth()} jobs do not end though they are cancelled")
            time.sleep(0.05)


def text_to_wav(folder: Path, work: Work, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the engine does in this process, in windows as large as the worker's; it is gone afterwards."""
    engine = OurEngine("bf16", folder, arguments.device, arguments.max_batch_requests)
    engine.to_wav(work)
    times = [engine.to_wav(work) for _ in range(arguments.repeats)]
    figures = {"name": engine.name, "seconds": times, "audio_s_per_s": work.audio_seconds / Summary.of(times).median}
    say(f"{engine.name}: text to WAV {figures['audio_s_per_s']:.1f} audio-s/s")
    del engine
    gc.collect()
    if arguments.device == "cuda":
        torch.cuda.empty_cache()
    return figures


def run(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """All measurements, written to `arguments.out` after each of them."""
    with_engine = arguments.synthesizer == "engine"
    results: dict[str, Any] = {
        **circumstances("bench.service", arguments.device),
        "settings": {name: str(value) for name, value in vars(arguments).items()},
        "saturated": [],
        "loops": [],
    }
    model = None
    with interruptible():
        if with_engine:
            model = arguments.checkpoint or checkpoint_of_size(arguments.size, scratch)
            work = make_work(
                arguments.max_batch_requests * arguments.windows, SENTENCE_SECONDS, False, arguments.num_step
            )
            results["text_to_wav"] = text_to_wav(model, work, arguments)
            write(arguments.out, results)
    environ = environ_of(arguments, model and model.resolve(), os.environ)
    with locked(arguments.state or scratch / "stack") as state, contextlib.ExitStack() as undo:
        stack = Stack(state, environ, say)
        stack.up()
        undo.callback(stack.down)
        product = Product(state, environ)
        undo.callback(product.stop_workers)
        bench = Bench(product, make_work(16, SENTENCE_SECONDS, False, arguments.num_step), arguments)
        with interruptible(), product.watched():
            note(results, "saturated", bench.saturated(1), arguments)
            for clients in arguments.clients:
                note(results, "loops", bench.loop(clients), arguments)
            if arguments.gpus > 1:
                product.add_workers(range(1, arguments.gpus))
                note(results, "saturated", bench.saturated(arguments.gpus), arguments)
    return results


def note(results: dict[str, Any], part: str, figures: dict[str, Any], arguments: argparse.Namespace) -> None:
    results[part].append(figures)
    write(arguments.out, results)
    say(f"{part}: {json.dumps(figures)}")


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--checkpoint", type=Path, help="a folder; without it, random weights of --size")
    parser.add_argument("--size", choices=("published", "medium", "golden"), default="published")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--synthesizer", choices=("engine", "tone"), default="engine", help="tone: the queue alone")
    parser.add_argument("--tone-window-ms", type=int, default=0, help="what tone takes for a window: a GPU's pace, say")
    parser.add_argument("--mode", choices=("request", "step"), default="step")
    parser.add_argument("--clients", default="64,40", help="closed loops, comma-separated; empty for none")
    parser.add_argument("--seconds", type=float, default=30.0, help="that count, of every load")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds before them, under the same load")
    parser.add_argument("--gpus", type=int, default=1, help="more than one: saturated again, with a worker on each")
    parser.add_argument("--max-batch-requests", type=int, default=32)
    parser.add_argument("--num-step", type=int, default=32)
    parser.add_argument("--windows", type=int, default=8, help="full batches in a pass of text to WAV")
    parser.add_argument("--repeats", type=int, default=3, help="passes of text to WAV, after one to warm up")
    parser.add_argument("--api-threads", type=int, help="default: a long poll for every client, and as many again")
    parser.add_argument("--state", type=Path, help="folder for data and logs, which stays; default: a temporary one")
    arguments = parser.parse_args(given)
    try:
        arguments.clients = [int(part) for part in arguments.clients.split(",") if part]
    except ValueError:
        parser.error("--clients: must be numbers with commas between them")
    if arguments.api_threads is None:
        arguments.api_threads = max(32, 2 * max(arguments.clients, default=0))
    if arguments.synthesizer == "tone":
        arguments.device = "cpu"
    return arguments


def main() -> int:
    arguments = parse()

    def show(results: dict[str, Any]) -> str:
        return f"{results['device']}, torch {results['torch']}, {results['date']}\n\n{report(results)}"

    return measure("service", lambda scratch: run(arguments, scratch), show, PeerFailed)


if __name__ == "__main__":
    sys.exit(main())
