"""What `appendfsync always` costs a submission beside `everysec`: jobs written to the ledger, as before each 202.

python -m bench.fsync --folder FOLDER

Redis runs with the project's configuration on the disk of `--folder` (one in memory would tell nothing).
Each policy twice, in turns, so that a drift of the machine is seen.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.command import shown_command
from infra.local import ports, services
from worker.jobs.connection import connect
from worker.jobs.ledger import Ledger, NewJob
from worker.jobs.models import JobRequest
from worker.jobs.names import new_job_id
from worker.jobs.settings import Settings

REQUEST = JobRequest.parse(
    {"text": "It is a sentence of some eighty letters, as one would have it spoken aloud, is it?"}
)
POLICIES = ("everysec", "always")
REPEATS = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fsync", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where Redis keeps its file")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    options = parser.parse_args()
    print(shown_command("bench.fsync"))
    print("| appendfsync | threads | jobs/s | median, ms | 99th percentile, ms |\n| --- | --- | --- | --- | --- |")
    for _ in range(REPEATS):
        for policy in POLICIES:
            with (
                tempfile.TemporaryDirectory(dir=options.folder) as folder,
                redis_with(policy, Path(folder)) as settings,
            ):
                for num_threads in (1, 16):
                    times = submit_for(options.seconds, num_threads, settings)
                    median, slow = statistics.median(times), statistics.quantiles(times, n=100)[-1]
                    rate = len(times) / options.seconds
                    print(
                        f"| {policy} | {num_threads} | {rate:.0f} | {median * 1e3:.2f} | {slow * 1e3:.2f} |", flush=True
                    )
    return 0


@contextmanager
def redis_with(policy: str, folder: Path) -> Iterator[Settings]:
    service = services.redis({}, folder, ports.choose(["redis"], {})["redis"])
    process = subprocess.Popen([*service.command, "--appendfsync", policy], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + service.start_seconds
        while not service.is_ready():
            if time.monotonic() > deadline or process.poll() is not None:
                sys.exit("bench.fsync: Redis does not start")
            time.sleep(0.05)
        yield Settings(redis_url=service.address, max_queue=10_000_000)
    finally:
        process.kill()
        process.wait()


def submit_for(seconds: float, num_threads: int, settings: Settings) -> list[float]:
    """Seconds of each submission, by threads that submit one after the other."""
    times: list[float] = []
    with connect(settings) as redis:
        ledger = Ledger(redis, settings)
        end = time.perf_counter() + seconds
        run_threads(num_threads, lambda: times.extend(_submit_until(end, ledger)))
    return times


def _submit_until(end: float, ledger: Ledger) -> list[float]:
    times = []
    while (began := time.perf_counter()) < end:
        ledger.submit(NewJob(new_job_id(), REQUEST, 5.0, "bench"))
        times.append(time.perf_counter() - began)
    return times


def run_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
