"""Parts of the product for a load test, each in the composition that it needs: Redis, S3, API, the null worker."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from redis import Redis

from bench.service_figures import CpuMeter
from bench.service_product import OWN
from infra.local import environment as environments
from infra.local import ports, processes, services
from infra.local.credentials import ensure_identities
from infra.local.errors import LocalError
from infra.local.logs import Log
from infra.local.services import SEAWEEDFS_PORTS, Service
from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings
from worker.jobs.stats import QueueStats

POLL_SECONDS = 0.05


class LoadStack:
    """Services in a folder of their own; all that were started are stopped at the end of the block."""

    def __init__(self, folder: Path, environ: Mapping[str, str], **chosen: object) -> None:
        """`chosen` are settings by their names in lower case; other `OMNIVOICE_*` variables of `environ` pass."""
        (folder / "logs").mkdir(parents=True)
        self._folder = folder
        self._ports = ports.choose(["redis", "api", *SEAWEEDFS_PORTS], {})
        self._identities = folder / "s3-identities.json"
        keys = ensure_identities(self._identities)
        kept = {name: value for name, value in environ.items() if name not in OWN}
        kept |= {f"OMNIVOICE_{name.upper()}": str(value) for name, value in chosen.items()}
        taken = self._ports
        self._environment = environments.complete(kept, taken["redis"], taken["s3"], taken["api"], keys)
        self.settings = Settings.from_environment(self._environment)
        self.address = services.client_address(self.settings)
        self.ledger = Ledger.from_settings(self.settings)
        self.redis: Redis = Redis.from_url(self.settings.redis_url, decode_responses=True)
        self._running: dict[str, tuple[Service, subprocess.Popen[bytes]]] = {}

    def __enter__(self) -> LoadStack:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)

    @property
    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, (_, child) in self._running.items()}

    def start_servers(self) -> None:
        self._start(services.redis(self._environment, self._folder, self._ports["redis"]))
        self._start(services.seaweedfs(self._environment, self.settings, self._folder, self._identities, self._ports))

    def start_api(self, **changed: object) -> None:
        """`changed` are settings that it gets otherwise than the rest."""
        self._start(services.api(self._changed(changed), self.settings))

    def start_worker(self, *options: str, **changed: object) -> None:
        """The null worker; `changed` as in `start_api`."""
        environment = self._changed(changed)
        log = Log(self._log("worker"))
        log.begin_here()  # an earlier one has written to it
        service = services.worker(environment, self.settings, log)
        self._start(dataclasses.replace(service, command=(sys.executable, "-m", "bench.null_worker", *options)))

    def stop(self, name: str) -> None:
        service, child = self._running.pop(name)
        processes.stop(processes.identify(child.pid), service.stop_seconds)
        child.wait()
        for leftover in service.leftovers:
            Path(leftover).unlink(missing_ok=True)

    def clear(self) -> None:
        """Stop what works with the servers, and empty Redis."""
        for name in [name for name in self._running if name in ("api", "worker")]:
            self.stop(name)
        self.redis.flushall()

    def queue(self) -> QueueStats:
        """The interactive queue, where all jobs of a load test are."""
        return next(iter(self.ledger.stats().values()))

    def wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Raises `LocalError` where it does not become true, or where a service has ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            for name, (_, child) in self._running.items():
                if child.poll() is not None:
                    raise LocalError(f"{name} has ended: {self._end_of_log(name)}")
            if time.monotonic() > deadline:
                raise LocalError(f"{what}: not within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    @contextlib.contextmanager
    def metered(self) -> Iterator[dict[str, Any]]:
        """Fills what it gives with the load of the block: cores that each service and all other programs kept busy."""
        found: dict[str, Any] = {}
        meter, before, began = CpuMeter(self.pids), _busy_seconds(), time.monotonic()
        yield found
        seconds = time.monotonic() - began
        cores = {name: load["cores"] for name, load in meter.cores().items()}
        # The kernel's own work for our services, which no process is charged with, is among the others'.
        others = (_busy_seconds() - before) / seconds - sum(cores.values())
        found |= {"cores": cores | {"others": round(max(0.0, others), 3)}}

    def _start(self, service: Service) -> None:
        child = processes.launch(service.command, service.environment, self._log(service.name))
        self._running[service.name] = (service, child)
        self.wait_until(service.is_ready, service.start_seconds, f"{service.name} is ready")

    def _changed(self, changed: Mapping[str, object]) -> dict[str, str]:
        return self._environment | {f"OMNIVOICE_{name.upper()}": str(value) for name, value in changed.items()}

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"

    def _end_of_log(self, name: str) -> str:
        return self._log(name).read_text(encoding="utf-8", errors="replace")[-500:]


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.irq + times.softirq)
