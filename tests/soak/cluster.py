"""The processes of the service, each watched and started again when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.local import ports, probes, processes, services
from infra.local.credentials import S3Keys, ensure_identities
from infra.local.environment import complete
from infra.local.logs import Log
from infra.local.services import SEAWEEDFS_PORTS, Service
from tests.soak.proxy import Proxy
from worker.jobs.settings import Settings

TEND_SECONDS = 0.05
REFUSED_START_STATUS = 2
REFUSED_PAUSE_SECONDS = 0.5


class ClusterError(Exception):
    """A process that is needed does not come up."""


@dataclass(frozen=True)
class Exit:
    """An end of a process. `asked` is the signal that the soak had sent it, None where it ended by itself."""

    name: str
    status: int
    asked: signal.Signals | None
    log: Path

    @property
    def is_surprise(self) -> bool:
        """Neither asked for, nor the start that was refused because a server was away."""
        return self.asked is None and self.status != REFUSED_START_STATUS


class Slot:
    """A place for one process. `build` tells what to start there, given its log file."""

    def __init__(self, name: str, folder: Path, build: Callable[[Path], Service]) -> None:
        self.name = name
        self.exits: list[Exit] = []
        self.num_starts = 0
        self._folder = folder
        self._build = build
        self._lock = threading.Lock()
        # All of the following are guarded by `_lock`.
        self._service: Service | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: processes.ProcessId | None = None
        self._asked: signal.Signals | None = None
        self._not_before = 0.0
        self._orphans: list[processes.ProcessId] = []

    @property
    def log(self) -> Path:
        """Of the process that was started last."""
        return self._folder / f"{self.name}-{self.num_starts}.log"

    @property
    def pid(self) -> int | None:
        """None while nothing runs there."""
        with self._lock:
            return None if self._child is None else self._child.pid

    def is_ready(self) -> bool:
        with self._lock:
            service = self._service if self._child is not None else None
        return service is not None and service.is_ready()

    def signal(self, number: signal.Signals, hold_seconds: float = 0.0) -> None:
        """Send a signal to the process, where one runs, and not to its children.

        After an end that was asked for, it is started again once `hold_seconds` have passed.
        """
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                return
            if number not in (signal.SIGSTOP, signal.SIGCONT):
                self._asked = number
                self._not_before = time.monotonic() + hold_seconds
                self._orphans += [processes.identify(child.pid) for child in psutil.Process(self._child.pid).children()]
            os.kill(self._child.pid, number)

    def tend(self) -> None:
        """Note an end, and start what does not run."""
        with self._lock:
            if self._child is not None and (status := self._child.poll()) is not None:
                self.exits.append(Exit(self.name, status, self._asked, self.log))
                self._child = self._asked = None
                if status == REFUSED_START_STATUS:
                    self._not_before = time.monotonic() + REFUSED_PAUSE_SECONDS
            if self._child is None and time.monotonic() >= self._not_before:
                self.num_starts += 1
                self._service = self._build(self.log)
                self._child = processes.launch(self._service.command, self._service.environment, self.log)
                self._identity = processes.identify(self._child.pid)

    def stop(self) -> None:
        """End the process with its children, and what children its killed predecessors left."""
        with self._lock:
            for orphan in self._orphans:
                if orphan.is_running:
                    os.kill(orphan.pid, signal.SIGKILL)
            if self._child is None or self._identity is None:
                return
            processes.stop(self._identity, 0.0)
            self._child.wait()
            self._child = None
            for leftover in self._service.leftovers if self._service else ():
                Path(leftover).unlink(missing_ok=True)


@dataclass(frozen=True)
class Options:
    """What a run may choose about the service."""

    num_workers: int
    lease_seconds: float
    max_attempts: int
    tone_window_ms: int = 150
    max_batch_requests: int = 8
    max_published: int = 4
    """So few that whatever piles up waits beyond it."""


class Cluster:
    """Redis with its append-only file, SeaweedFS, a proxy before each, the API and workers; all in `folder`."""

    def __init__(self, folder: Path, options: Options, environ: Mapping[str, str]) -> None:
        self._folder = folder
        chosen = ports.choose(["redis", "api", *SEAWEEDFS_PORTS], {})
        bare = {name: value for name, value in environ.items() if not name.startswith(("OMNIVOICE_", "AWS_"))}
        identities = folder / "s3-identities.json"
        self.keys: S3Keys = ensure_identities(identities)
        self.redis_url = f"redis://127.0.0.1:{chosen['redis']}/0"
        self.s3_endpoint = f"http://127.0.0.1:{chosen['s3']}"
        self.redis_proxy, self.s3_proxy = Proxy(chosen["redis"]), Proxy(chosen["s3"])
        environment = complete(
            bare | _settings(options), self.redis_proxy.port, self.s3_proxy.port, chosen["api"], self.keys
        )
        self.settings = Settings.from_environment(environment)
        self.api_address = services.client_address(self.settings)
        settings = self.settings
        self.redis = Slot("redis", folder, lambda log: services.redis(bare, folder, chosen["redis"]))
        self.s3 = Slot("s3", folder, lambda log: services.seaweedfs(bare, settings, folder, identities, chosen))
        self.api = Slot("api", folder, lambda log: services.api(environment, settings))
        self.workers = [
            Slot(f"worker-{index}", folder, lambda log: services.worker(environment, settings, Log(log)))
            for index in range(options.num_workers)
        ]
        self._tended: list[Slot] = []
        self._is_stopping = threading.Event()
        # The only thread that starts processes: an interrupt reaches the main thread, never a start half done.
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    @property
    def slots(self) -> list[Slot]:
        return [self.redis, self.s3, self.api, *self.workers]

    def start(self) -> None:
        """Raises `ClusterError` where a process does not get ready."""
        self._supervisor.start()
        for group in ([self.redis, self.s3], [self.api, *self.workers]):
            self._tended += group
            for slot in group:
                self.wait_ready(slot)

    def wait_ready(self, slot: Slot, seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not slot.is_ready():
            if time.monotonic() > deadline or self._is_stopping.is_set():
                raise ClusterError(f"{slot.name} is not ready after {seconds:.0f} s; log: {slot.log}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End everything that was started."""
        self._is_stopping.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        with contextlib.ExitStack() as stack:  # each is tried, whatever the others say
            for proxy in (self.redis_proxy, self.s3_proxy):
                stack.callback(proxy.close)
            for slot in self.slots:
                stack.callback(slot.stop)

    def _supervise(self) -> None:
        while not self._is_stopping.wait(TEND_SECONDS):
            for slot in list(self._tended):
                slot.tend()

    def redis_answers(self) -> bool:
        return probes.redis_answers(self.redis_url)

    def api_lives(self) -> bool:
        return probes.api_is_ready(self.api_address)


def worker_name(pid: int) -> str:
    """The name under which a worker of this machine leases jobs."""
    return f"{socket.gethostname()}-{pid}"


def _settings(options: Options) -> dict[str, str]:
    return {
        "OMNIVOICE_SYNTHESIZER": "tone",
        "OMNIVOICE_TONE_WINDOW_MS": str(options.tone_window_ms),
        "OMNIVOICE_MAX_BATCH_REQUESTS": str(options.max_batch_requests),
        "OMNIVOICE_MAX_PUBLISHED": str(options.max_published),
        "OMNIVOICE_LEASE_SECONDS": str(options.lease_seconds),
        "OMNIVOICE_MAX_ATTEMPTS": str(options.max_attempts),
        "OMNIVOICE_DRAIN_SECONDS": "10",
        "OMNIVOICE_BATCH_DEADLINE_SECONDS": "60",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
