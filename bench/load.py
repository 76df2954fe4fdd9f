"""What the queue itself takes of two cores: submitting, working, waiting, memory; the model is left out.

python -m bench.load --out bench/results/load.json
python -m bench.load --out bench/results/load.json --parts submit,worker
python -m bench.load --out /tmp/load.json --quick      # every part, small: whether it works, not how fast

Redis with its append-only file, SeaweedFS and the API are started as `make up` starts them, in a temporary folder, and
the worker around a synthesizer that takes no time (`bench.null_worker`). Clients run on the same cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.cold_memory import cold_memory_ms
from bench.command import shown_command
from bench.load_clients import Answers, Clients, body
from bench.load_figures import growth, latencies, report
from bench.load_stack import LoadStack
from bench.record import today, write
from bench.service_clients import Caller, CallFailed
from bench.service_product import measure, say
from infra.local.interruption import interruptible
from omnivoice.planning import plan
from worker.jobs import names
from worker.jobs.ledger import NewJob
from worker.jobs.models import JobRequest, Queue, Status
from worker.jobs.tracing import TraceContext

SHORT_SECONDS = 0.2
"""Audio of a job where memory is measured, so that tens of thousands of objects fit on a disk."""
SETTLED_SHARE = (0.1, 0.95)
"""Of a backlog, the part in which a worker's rate counts: it has warmed up, and its threads still have enough to do."""
MAX_QUEUE = 1_000_000
RETENTION_SECONDS = 3.0
SETTLING_SECONDS = 2.0
"""Redis makes its tables smaller a little after they have been emptied."""


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How much of each part is run."""

    submit_seconds: float = 10.0
    submit_repeats: int = 3
    open_rate: float = 150.0
    open_seconds: float = 30.0
    backlog: int = 6_000
    backlog_uploading: int = 3_000
    latency_jobs: int = 200
    redis_published: int = 4_000
    redis_unpublished: int = 16_000
    memory_jobs: int = 50_000
    memory_step: int = 1_000
    warm_up: int = 500


QUICK = Size(0.5, 1, 20.0, 1.0, 200, 100, 5, 100, 100, 400, 40, 50)


def submit(stack: LoadStack, size: Size, arguments: argparse.Namespace) -> dict[str, Any]:
    """No worker: as fast as the clients are answered, then half as fast as is asked for."""
    stack.start_api()
    clients = Clients(stack.address)
    clients.closed_loop(arguments.clients, jobs=size.warm_up)
    rates, loads = [], []
    for _ in range(size.submit_repeats):
        with stack.metered() as load:
            answers = _accepted(clients.closed_loop(arguments.clients, size.submit_seconds))
        rates.append(round(answers.rate, 1))
        loads.append(load["cores"])
        say(f"submitted {answers.rate:.0f} jobs/s, {latencies(answers.seconds)}, {load}")
    with stack.metered() as load:
        answers = _accepted(clients.open_loop(size.open_rate, size.open_seconds, random.Random(0)))
    clients.close()
    opened = {"rate": size.open_rate, "jobs": answers.num_accepted} | latencies(answers.seconds) | load
    return {"clients": arguments.clients, "jobs_per_s": statistics.median(rates), "rates": rates, "cores": loads} | {
        "open_loop": opened
    }


def worker(stack: LoadStack, size: Size, arguments: argparse.Namespace) -> dict[str, Any]:
    return _work(stack, size.backlog, "--keep-nothing")


def worker_uploading(stack: LoadStack, size: Size, arguments: argparse.Namespace) -> dict[str, Any]:
    return _work(stack, size.backlog_uploading)


def _work(stack: LoadStack, num_jobs: int, *options: str) -> dict[str, Any]:
    """One worker before a backlog, no API beside it: jobs that end a second once it is at work."""
    _announce(stack, num_jobs)
    stack.start_worker(*options)
    first, last = (round(num_jobs * share) for share in SETTLED_SHARE)
    _wait_for_ends(stack, first, 120)
    with stack.metered() as load:
        began, before = time.monotonic(), _ended(stack)
        _wait_for_ends(stack, last, 300)
        rate = (_ended(stack) - before) / (time.monotonic() - began)
    _wait_for_ends(stack, num_jobs, 60)
    return {"jobs": num_jobs, "jobs_per_s": round(rate, 1)} | load


def _announce(stack: LoadStack, num_jobs: int) -> None:
    """A backlog without an API: what the API stores and sends for each job."""
    for index in range(num_jobs):
        request = JobRequest.parse(body(index))
        seconds = plan(request.to_synthesis_request()).seconds
        trace = TraceContext.continued(None)
        new = NewJob(names.new_job_id(), request, estimate_seconds=seconds, owner="local", trace=trace)
        stack.ledger.submit(new)


def latency(stack: LoadStack, size: Size, arguments: argparse.Namespace) -> dict[str, Any]:
    """One job at a time: from the client's call to the start of its window, less the wait that the settings ask for."""
    stack.start_api()
    stack.start_worker()
    caller, chance = Caller(), random.Random(0)
    samples: dict[str, list[float]] = {"added": [], "accepted": [], "queued": [], "batched": []}
    for index in range(size.latency_jobs):
        began = time.time()
        _, headers, _ = caller.call("POST", f"{stack.address}/v1/jobs", body(index))
        accepted = time.time()
        job, _ = caller.job(stack.address + headers["Location"], 20)
        if job["status"] != Status.SUCCEEDED:
            raise CallFailed(f"{job['id']} {job['status']}")
        # The record's time is cut to whole milliseconds: taken at its latest.
        started = datetime.datetime.fromisoformat(job["started_at"]).timestamp() + 1e-3
        timings = job["result"]["timings"]
        samples["added"].append(started - began - stack.settings.max_wait_ms / 1e3)
        samples["accepted"].append(accepted - began)
        samples["queued"].append(timings["queued_ms"] / 1e3)
        samples["batched"].append(timings["batched_ms"] / 1e3)
        time.sleep(chance.uniform(0.05, 0.15))
    figures: dict[str, Any] = {"jobs": size.latency_jobs, "max_wait_ms": stack.settings.max_wait_ms}
    figures["cold_memory_ms"] = cold_memory_ms()
    return figures | {name: latencies(values) for name, values in samples.items()}


def memory(stack: LoadStack, size: Size, arguments: argparse.Namespace) -> dict[str, Any]:
    """Resident memory of the API (with its master) and of the worker, after every thousand jobs from HTTP to S3."""
    stack.start_api()
    stack.start_worker("--audio-seconds", str(SHORT_SECONDS))
    clients = Clients(stack.address)
    rows: list[dict[str, int]] = []
    began = time.monotonic()
    # The first time as many as the API has threads: all of them are there then.
    num_clients = stack.settings.api_threads
    while not rows or rows[-1]["jobs"] < size.memory_jobs:
        _accepted(clients.closed_loop(num_clients, jobs=size.memory_step))
        num_clients = arguments.clients
        num_jobs = (rows[-1]["jobs"] if rows else 0) + size.memory_step
        _wait_for_ends(stack, num_jobs, 120)
        rows.append({"jobs": num_jobs} | {name: _resident(stack.pids[name]) for name in ("api", "worker")})
        seconds = time.monotonic() - began
        say(f"{rows[-1]}, {num_jobs / seconds:.0f} jobs/s")
    clients.close()
    jobs = [row["jobs"] for row in rows]
    grown = {name: growth(jobs, [row[name] for row in rows]) for name in ("api", "worker")}
    return {"growth": grown, "resident": rows}


def redis(stack: LoadStack, size: Size, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a waiting job of 100 characters takes in Redis, published and beyond the bound, and what is left of it."""
    stack.start_api(max_published=size.redis_published)
    clients = Clients(stack.address)
    # Everything once before: connections, scripts and fixed keys are there, on both sides of the comparison.
    _accepted(clients.closed_loop(arguments.clients, jobs=size.warm_up))
    _work_and_forget(stack, size.warm_up)
    before, num_keys = _used(stack), stack.redis.dbsize()
    _accepted(clients.closed_loop(arguments.clients, jobs=size.redis_published))
    published, num_messages = _used(stack), _num_messages(stack)
    messages = (stack.redis.memory_usage(_messages(stack), samples=0) or 0) / num_messages
    _accepted(clients.closed_loop(arguments.clients, jobs=size.redis_unpublished))
    # Clients that submit at once may each publish one more than the bound.
    beyond = (_used(stack) - published - messages * (_num_messages(stack) - num_messages)) / size.redis_unpublished
    a_job = (published - before) / size.redis_published
    record = next(stack.redis.scan_iter(_records(stack), count=1_000))
    encoding, record_bytes = stack.redis.object("encoding", record), stack.redis.memory_usage(record, samples=0)
    say(f"{a_job:.0f} B a job, of which the message {messages:.0f} B; {beyond:.0f} B beyond the bound")
    num_jobs = size.redis_published + size.redis_unpublished
    _work_and_forget(stack, size.warm_up + num_jobs)
    clients.close()
    return {
        "jobs_published": size.redis_published,
        "jobs_beyond": size.redis_unpublished,
        "bytes_a_job": round(a_job, 1),
        "bytes_beyond_the_bound": round(beyond, 1),
        "record_encoding": encoding,
        "bytes_record": record_bytes,
        "bytes_message": round(messages, 1),
        "keys_left": stack.redis.dbsize() - num_keys,
        "bytes_left_a_job": round((_used(stack) - before) / num_jobs, 1),
    }


def _work_and_forget(stack: LoadStack, num_jobs: int) -> None:
    """Bring all jobs to their end, and wait until Redis has forgotten them."""
    stack.start_worker("--keep-nothing", "--audio-seconds", "0.04", retention_hours=RETENTION_SECONDS / 3_600)
    _wait_for_ends(stack, num_jobs, 300)

    def is_empty() -> bool:
        return next(stack.redis.scan_iter(_records(stack), count=1_000), None) is None

    stack.wait_until(is_empty, 60, "the records are gone")
    stack.stop("worker")
    time.sleep(SETTLING_SECONDS)


def _accepted(answers: Answers) -> Answers:
    if refused := {status: number for status, number in answers.statuses.items() if status != 202}:
        raise CallFailed(f"answers by status that are no 202: {refused}")
    return answers


def _ended(stack: LoadStack) -> int:
    ended = stack.queue().ended
    if ended[Status.SUCCEEDED] != sum(ended.values()):
        raise CallFailed(f"jobs ended otherwise than succeeded: {ended}")
    return ended[Status.SUCCEEDED]


def _wait_for_ends(stack: LoadStack, num_jobs: int, seconds: float) -> None:
    stack.wait_until(lambda: _ended(stack) >= num_jobs, seconds, f"{num_jobs} jobs have ended")


def _resident(pid: int) -> int:
    """Bytes of a process and of those that it has started."""
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def _messages(stack: LoadStack) -> str:
    return names.message_list_key(stack.settings.redis_prefix, Queue.INTERACTIVE.value)


def _num_messages(stack: LoadStack) -> int:
    return stack.redis.llen(_messages(stack))


def _records(stack: LoadStack) -> str:
    return f"{stack.settings.redis_prefix}:job:*"


def _used(stack: LoadStack) -> int:
    return int(stack.redis.info("memory")["used_memory"])


PARTS: dict[str, Callable[[LoadStack, Size, argparse.Namespace], dict[str, Any]]] = {
    part.__name__: part for part in (submit, worker, worker_uploading, latency, redis, memory)
}


def run(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """All parts that were asked for, each with an empty Redis; written to `arguments.out` after each of them."""
    results: dict[str, Any] = {
        "date": today(),
        "command": shown_command("bench.load"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "settings": {"clients": arguments.clients, "api_workers": arguments.api_workers, "quick": arguments.quick},
    }
    size = QUICK if arguments.quick else Size()
    chosen = {"api_workers": arguments.api_workers, "max_queue": MAX_QUEUE}
    with LoadStack(scratch, os.environ, **chosen) as stack, interruptible():
        stack.start_servers()
        for part in arguments.parts:
            before = [round(load, 2) for load in os.getloadavg()]
            say(f"{part}: load average before it {before}")
            figures = PARTS[part](stack, size, arguments)
            stack.clear()
            results[part] = {"load_average_before": before} | figures
            write(arguments.out, results)
            say(f"{part}: {json.dumps(figures)}")
    return results


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; default: all (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small: whether it works, not how fast")
    parser.add_argument("--clients", type=int, default=16, help="connections of a closed loop")
    parser.add_argument("--api-workers", type=int, default=1, help="gunicorn's processes")
    arguments = parser.parse_args(given)
    arguments.parts = [part for part in arguments.parts.split(",") if part]
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"--parts: {unknown[0]!r} is none of {', '.join(PARTS)}")
    return arguments


def main() -> int:
    arguments = parse()

    def show(results: dict[str, Any]) -> str:
        return f"{results['cores']} cores, Python {results['python']}, {results['date']}\n\n{report(results)}"

    return measure("load", lambda scratch: run(arguments, scratch), show)


if __name__ == "__main__":
    sys.exit(main())
