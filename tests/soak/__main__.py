"""`python -m tests.soak`: the whole service under load and faults, then a verdict. Exit status 0 where it is clean, 1
where it is not, 130 when told to stop. The same seed and sizes give the same jobs and the same schedule of faults.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import boto3
from botocore.config import Config
from redis import Redis
from redis.exceptions import RedisError

from tests.soak.checker import Keys, Store, Verdict, judge, num_open
from tests.soak.clients import Clients
from tests.soak.cluster import Cluster, ClusterError, Options
from tests.soak.evidence import Evidence
from tests.soak.faults import BACKEND_KINDS, PROCESS_KINDS, Injector, draw_schedule
from tests.soak.recovery import Watch
from tests.soak.summary import print_summary

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED_STATUS = 130
PROGRESS_SECONDS = 5.0
KINDS = (*PROCESS_KINDS, *BACKEND_KINDS)


class Interrupted(BaseException):
    """Told to stop by a signal."""


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        return 0 if _run(options) else 1
    except ClusterError as error:
        _say(f"soak: {error}")
        return 1
    except Interrupted:
        _say("soak: interrupted; what it started is ended")
        return INTERRUPTED_STATUS


def _run(options: argparse.Namespace) -> bool:
    """Whether the soak was clean. Everything that was started has ended by then."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    cluster = Cluster(folder, Options(options.workers, options.lease_seconds, options.max_attempts), os.environ)
    is_clean = False
    try:
        is_clean = Soak(options, cluster).run()
        return is_clean
    finally:
        for number in STOP_SIGNALS:  # half of the ending would leave processes behind
            signal.signal(number, signal.SIG_IGN)
        cluster.stop()
        if is_clean and not options.keep:
            shutil.rmtree(folder)
        else:
            _say(f"logs and data are kept in {folder}")


class Soak:
    """One run."""

    def __init__(self, options: argparse.Namespace, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._evidence = Evidence()
        self._keys = Keys(cluster.settings.redis_prefix)
        self._redis = Redis.from_url(cluster.redis_url, decode_responses=True, socket_timeout=30.0)

    def run(self) -> bool:
        """Whether it was clean."""
        options, cluster = self._options, self._cluster
        span = options.jobs / options.rate
        schedule = draw_schedule(
            options.seed, span, options.seconds_per_fault, options.workers, options.lease_seconds, options.only
        )
        _say(
            f"soak: --seed {options.seed} --jobs {options.jobs} --rate {options.rate:g}"
            f" --seconds-per-fault {options.seconds_per_fault:g} --workers {options.workers}"
            f" --lease-seconds {options.lease_seconds:g} --max-attempts {options.max_attempts}"
            + "".join(f" --only '{kind}'" for kind in options.only)
        )
        _say(f"schedule: {len(schedule)} faults over {span:.0f} s")
        for fault in schedule:
            _say(f"  {fault}")
        cluster.start()
        _say("the service runs")
        began_at = time.monotonic()
        watch = Watch(cluster.redis_url, self._keys)
        injector = Injector(cluster, watch, _say)
        clients = Clients(cluster.api_address, self._evidence, options.seed, options.jobs, options.rate)
        clients.start()
        injector.start(schedule)
        while clients.is_submitting or injector.is_alive:
            self._tell_progress(began_at, clients)
        injector.stop()
        self._settle(began_at, clients)
        clients.stop()
        watch.join()
        seconds = time.monotonic() - began_at
        verdict = self._judge()
        return print_summary(_say, verdict, self._evidence, cluster, injector, watch, seconds)

    def _settle(self, began_at: float, clients: Clients) -> None:
        """Wait for the end of all jobs; what has not ended by the deadline is stuck."""
        deadline = time.monotonic() + self._options.settle_seconds
        while time.monotonic() < deadline and (clients.num_watched or num_open(self._redis, self._keys)):
            self._tell_progress(began_at, clients)

    def _tell_progress(self, began_at: float, clients: Clients) -> None:
        """Every few seconds one line; in between, short sleeps, out of which a signal wakes this thread."""
        until = time.monotonic() + PROGRESS_SECONDS
        while time.monotonic() < until and (clients.is_submitting or clients.num_watched):
            time.sleep(0.1)
        try:
            waiting = str(num_open(self._redis, self._keys))
        except (RedisError, OSError):
            waiting = "?"
        ended = sum(bool(entry.seen) for entry in list(self._evidence.accepted.values()))
        _say(
            f"{time.monotonic() - began_at:6.0f} s: {len(self._evidence.accepted)} accepted, {ended} seen to end,"
            f" {waiting} open, {len(self._evidence.problems)} problems"
        )

    def _judge(self) -> Verdict:
        keys, settings = self._cluster.keys, self._cluster.settings
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=self._cluster.s3_endpoint,
            region_name=settings.s3_region,
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            config=Config(s3={"addressing_style": "path"}, proxies={}),
        )
        store = Store(client, settings.s3_bucket)
        return judge(self._redis, store, self._evidence, settings.max_attempts, self._keys)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="drawn where it is not given")
    parser.add_argument("--rate", type=float, default=25.0, help="submissions a second")
    parser.add_argument("--seconds-per-fault", type=float, default=5.0, help="mean time from one fault to the next")
    parser.add_argument("--only", action="append", choices=KINDS, default=[], metavar="KIND", help="may be repeated")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lease-seconds", type=float, default=3.0)
    parser.add_argument("--max-attempts", type=int, default=3)
    parser.add_argument("--settle-seconds", type=float, default=120.0, help="after which an open job counts as stuck")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of a clean run too")
    return parser.parse_args(arguments)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Interrupted


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
