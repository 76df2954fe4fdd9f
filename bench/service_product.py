"""The product as a benchmark runs it: the local stack, with as many workers as there are GPUs."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.service_clients import CallFailed
from infra.local import environment as environments
from infra.local import processes, services
from infra.local.credentials import ensure_identities
from infra.local.errors import LocalError
from infra.local.interruption import Interrupted, hold_back_signals
from infra.local.logs import Log
from infra.local.state import State
from worker.jobs.errors import QueueUnavailable
from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings

OWN = [f"OMNIVOICE_{name}" for name in ("REDIS_URL", "S3_ENDPOINT", "S3_PUBLIC_ENDPOINT", "API_KEYS_FILE")]
"""Settings that would lead away from what is started here."""
FAILED_STATUS, INTERRUPTED_STATUS = 1, 130
STARTED = time.perf_counter()


def say(line: str) -> None:
    print(f"[{time.perf_counter() - STARTED:6.1f} s] {line}", flush=True)


def measure(
    name: str,
    run: Callable[[Path], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    *errors: type[Exception],
) -> int:
    """Exit status of a benchmark: `run` it in a scratch folder and print what `show` makes of its results.

    What stops a stack or its clients, and `errors`, is one line; an interrupt waits until what was started is stopped.
    """
    hold_back_signals()
    try:
        with tempfile.TemporaryDirectory(prefix=f"omnivoice-{name}-") as scratch:
            results = run(Path(scratch))
    except (LocalError, CallFailed, QueueUnavailable, *errors) as error:
        print(f"bench.{name}: {error}", file=sys.stderr)
        return FAILED_STATUS
    except Interrupted:
        print(f"bench.{name}: interrupted; what it started is stopped", file=sys.stderr)
        return INTERRUPTED_STATUS
    print(f"\n{show(results)}")
    return 0


class Product:
    """The stack that `state` tells of, and further workers beside the one that it has."""

    def __init__(self, state: State, environ: Mapping[str, str]) -> None:
        self._state = state
        keys = ensure_identities(state.folder / "s3-identities.json")
        ports = state.ports
        self._environment = environments.complete(environ, ports["redis"], ports["s3"], ports["api"], keys)
        self.settings = Settings.from_environment(self._environment)
        self.ledger = Ledger.from_settings(self.settings)
        self.address = services.client_address(self.settings)
        self._more: dict[str, tuple[services.Service, subprocess.Popen[bytes]]] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of all services, by name."""
        pids = {name: record.process.pid for name, record in self._state.records.items()}
        return pids | {name: child.pid for name, (_, child) in self._more.items()}

    def add_workers(self, gpus: Sequence[int]) -> None:
        """Start a worker for each GPU, all at once, and wait for them. Raises `LocalError` where one ends before."""
        for gpu in gpus:
            name = f"worker-{gpu}"
            environment = {**self._environment, "CUDA_VISIBLE_DEVICES": str(gpu)}
            log = Log(self._state.log(name))
            log.begin_here()  # an earlier one has written to it
            service = services.worker(environment, self.settings, log)
            child = processes.launch(service.command, service.environment, log.path)
            self._more[name] = (service, child)
        began = time.monotonic()
        for name, (service, child) in self._more.items():
            while not service.is_ready():
                if child.poll() is not None or time.monotonic() - began > service.start_seconds:
                    raise LocalError(f"{name} did not come up: {self._end_of_log(name)}")
                time.sleep(0.1)
            say(f"{name}: ready after {time.monotonic() - began:.1f} s")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Where a service has ended, that is what went wrong in the block: raises `LocalError` with its last words."""
        try:
            yield
        except (CallFailed, QueueUnavailable):
            ended = [name for name, record in self._state.records.items() if not record.is_running]
            ended += [name for name, (_, child) in self._more.items() if child.poll() is not None]
            if not ended:
                raise
            raise LocalError("; ".join(f"{name} has ended: {self._end_of_log(name)}" for name in ended)) from None

    def _end_of_log(self, name: str) -> str:
        return self._state.log(name).read_text(encoding="utf-8", errors="replace")[-500:]

    def stop_workers(self) -> None:
        for service, child in self._more.values():
            processes.stop(processes.identify(child.pid), service.stop_seconds)
            child.wait()


def environ_of(arguments: argparse.Namespace, model: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment, with the settings that are measured; other `OMNIVOICE_*` pass."""
    chosen: dict[str, object] = {
        "SYNTHESIZER": arguments.synthesizer,
        "TONE_WINDOW_MS": arguments.tone_window_ms,
        "DEVICE": arguments.device,
        "MODE": arguments.mode,
        "MAX_BATCH_REQUESTS": arguments.max_batch_requests,
        "API_PORT": 0,
        "API_THREADS": arguments.api_threads,
    }
    if model is not None:
        chosen["MODEL"] = model
    kept = {name: value for name, value in environ.items() if name not in OWN}
    if arguments.device == "cuda":
        kept["CUDA_VISIBLE_DEVICES"] = "0"
    return kept | {f"OMNIVOICE_{name}": str(value) for name, value in chosen.items()}
