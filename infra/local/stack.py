"""Bringing the stack up and down."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.local import checks, ports, probes, processes, services
from infra.local import environment as environments
from infra.local.credentials import ensure_identities
from infra.local.environment import Wanted
from infra.local.errors import LocalError
from infra.local.interruption import interruptible
from infra.local.logs import Log
from infra.local.services import SEAWEEDFS_PORTS, Service
from infra.local.state import Record, State
from worker.jobs.errors import SettingsError
from worker.jobs.settings import Settings

Say = Callable[[str], None]
"""Takes one line for whoever watches."""

PREFERRED_PORTS = {"redis": 6379, "s3": 8333}
POLL_SECONDS = 0.1
NEWS_SECONDS = 10.0
"""How often a service that is not ready yet is reported on."""
SETTINGS_PREFIXES = ("OMNIVOICE_", "AWS_")
API_PORT = "OMNIVOICE_API_PORT"
METRICS_PORT = "OMNIVOICE_WORKER_METRICS_PORT"


class Stack:
    """The services of one state folder, whose lock the caller holds."""

    def __init__(self, state: State, environ: Mapping[str, str], say: Say) -> None:
        self._state = state
        self._environ = environ
        self._say = say
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, Log] = {}

    def up(self) -> str:
        """Start what does not run yet or runs with other settings; the API's address.

        Raises `LocalError` when a service does not come up, `Interrupted` when told to stop; what this call had started
        is stopped by then.
        """
        try:
            backends, fronts = self._plan()
            self._check_those_that_run([*backends, *fronts])
            for service, _ in self._running(backends):
                service.is_ready()  # the look makes the bucket, where another is wanted now
            self._stop_changed([*backends, *fronts])
            with interruptible():
                self._start(backends)
                self._start(fronts)
        except BaseException:
            self._stop_children()
            raise
        return fronts[0].address

    def down(self) -> int:
        """Stop every service that was started and still runs; how many those were."""
        running = [record for record in reversed(self._state.records.values()) if record.is_running]
        for record in running:
            self._stop(record)
        for record in list(self._state.records.values()):
            self._forget(record)
        return len(running)

    def run(self, *module: str) -> int:
        """Run a module with the settings of the worker here; its exit status.

        Raises `LocalError` where nothing was ever started. Why it does not run now may be what is to be found out.
        """
        if not self._state.ports:
            raise LocalError("nothing was started here; start it with `make up`")
        environment = self._complete(Wanted.of(self._environ), self._state.ports)
        return subprocess.call([sys.executable, "-m", *module], env=environment)

    def _plan(self) -> tuple[list[Service], list[Service]]:
        """What has to run: first the servers, then what needs them.

        Raises `LocalError` for settings that cannot work, as far as that can be told before anything is stopped.
        """
        wanted = Wanted.of(self._environ)
        folder = self._state.folder
        chosen = self._choose_ports(wanted)
        environment = self._complete(wanted, chosen)
        try:
            settings = Settings.from_environment(environment)
        except SettingsError as error:
            raise LocalError(str(error)) from None
        # Servers do without our settings: a changed one must not restart them, and they need no credentials.
        bare = {name: value for name, value in self._environ.items() if not name.startswith(SETTINGS_PREFIXES)}
        backends = []
        if wanted.redis:
            backends.append(services.redis(bare, folder, chosen["redis"]))
        if wanted.s3:
            backends.append(services.seaweedfs(bare, settings, folder, self._identities, chosen))
        fronts = [
            services.api(environment, settings),
            services.worker(environment, settings, self._log("worker")),
        ]
        self._check_ports(settings, chosen, fronts[1])
        with interruptible():
            checks.check(settings, wanted)
        return backends, fronts

    @property
    def _identities(self) -> Path:
        return self._state.folder / "s3-identities.json"

    def _complete(self, wanted: Wanted, chosen: Mapping[str, int]) -> dict[str, str]:
        """The environment of API and worker."""
        return environments.complete(
            self._environ,
            chosen["redis"] if wanted.redis else None,
            chosen["s3"] if wanted.s3 else None,
            chosen.get("api"),
            ensure_identities(self._identities) if wanted.s3 else None,
        )

    def _choose_ports(self, wanted: Wanted) -> dict[str, int]:
        """The ports of the last time as long as nobody else took them: clients remember addresses."""
        kept = PREFERRED_PORTS | self._state.ports
        if (running := self._running_api_port()) is not None:  # perhaps asked for by its number
            kept["api"] = running
        chosen: dict[str, int] = {}
        groups = {"redis": ["redis"], "s3": list(SEAWEEDFS_PORTS)}
        if wanted.api_port == 0:
            groups["api"] = ["api"]
        for service, names in groups.items():
            in_use = {name: kept[name] for name in names if name in kept}
            chosen |= in_use if self._state.is_running(service) else ports.choose(names, in_use)
        self._state.ports |= chosen
        self._state.save()
        return chosen

    def _running_api_port(self) -> int | None:
        record = self._state.records.get("api")
        return int(record.address.rpartition(":")[2]) if record is not None and record.is_running else None

    def _check_ports(self, settings: Settings, chosen: Mapping[str, int], worker: Service) -> None:
        """API and worker themselves would say so only after their predecessors had been stopped or servers brought up
        for them. A port of our own that runs is there for its successor: then only the address is in question."""
        configured = {API_PORT: settings.api_port, METRICS_PORT: settings.worker_metrics_port or 0}
        ports.check_distinct(configured, {name: port for name, port in chosen.items() if name != "api"})
        api_port = 0 if settings.api_port == self._running_api_port() else settings.api_port
        _check_is_free(API_PORT, api_port, settings.api_host)
        record = self._state.records.get("worker")
        if settings.worker_metrics_port is not None:
            is_ours = record is not None and record.is_running and METRICS_PORT not in changed(worker, record)
            _check_is_free(METRICS_PORT, 0 if is_ours else configured[METRICS_PORT], settings.worker_metrics_host)

    def _check_those_that_run(self, wanted: list[Service]) -> None:
        """Raises `LocalError` for one that is to go on as it is, but does not answer."""
        for service, record in self._running(wanted):
            if not changed(service, record) and not _answers(record):
                raise LocalError(
                    f"{service.name} runs as process {record.process.pid} but does not answer at {record.address}"
                    f" (log: {self._state.log(service.name)}); `make down` ends it"
                )

    def _stop_changed(self, wanted: list[Service]) -> None:
        """Stop what runs with other settings than are wanted now."""
        for service, record in self._running(wanted):
            if names := changed(service, record):
                self._say(f"{service.name}: is restarted, its settings have changed: {', '.join(names)}")
                self._stop(record)

    def _running(self, wanted: list[Service]) -> list[tuple[Service, Record]]:
        records = self._state.records
        return [(service, records[service.name]) for service in wanted if self._state.is_running(service.name)]

    def _start(self, wanted: list[Service]) -> None:
        """Start all of them together, then wait for each."""
        started = [service for service in wanted if self._launch(service)]
        for service in started:
            self._wait_until_ready(service)

    def _launch(self, service: Service) -> bool:
        """False where it runs already as it should."""
        record = self._state.records.get(service.name)
        if record is not None and record.is_running:
            self._say(f"{service.name}: runs already at {record.address}")
            return False
        log = self._log(service.name)
        log.begin_here()
        child = processes.launch(service.command, service.environment, log.path)
        self._children[service.name] = child
        self._state.records[service.name] = Record(
            service.name,
            processes.identify(child.pid),
            service.address,
            service.note,
            _digests(service),
            service.stop_seconds,
            service.leftovers,
        )
        self._state.save()
        return True

    def _wait_until_ready(self, service: Service) -> None:
        began_at = told_at = time.monotonic()
        child = self._children[service.name]
        while not service.is_ready():
            now = time.monotonic()
            if child.poll() is not None:
                raise LocalError(self._obituary(service, f"ended at its start with status {child.returncode}"))
            if now - began_at > service.start_seconds:
                raise LocalError(self._obituary(service, f"is not ready after {service.start_seconds:.0f} s"))
            if now - told_at > NEWS_SECONDS:
                told_at = now
                self._say(f"{service.name}: not ready yet, {now - began_at:.0f} s so far; {self._last_line(service)}")
            time.sleep(POLL_SECONDS)
        note = f" ({service.note})" if service.note else ""
        self._say(f"{service.name}: ready after {time.monotonic() - began_at:.1f} s, {service.address}{note}")

    def _obituary(self, service: Service, what: str) -> str:
        return f"{service.name} {what}: {self._last_line(service)} (log: {self._state.log(service.name)})"

    def _last_line(self, service: Service) -> str:
        """The end of this start's log; of a JSON object, the event. A progress bar's last state counts."""
        lines = [line.strip() for line in self._log(service.name).text().splitlines() if line.strip()]
        if not lines:
            return "nothing in its log"
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(lines[-1])["event"])
        return lines[-1]

    def _log(self, name: str) -> Log:
        return self._logs.setdefault(name, Log(self._state.log(name)))

    def _stop(self, record: Record) -> None:
        self._say(f"{record.name}: stopping")
        processes.stop(record.process, record.stop_seconds)
        if record.name in self._children:
            self._children.pop(record.name).wait()
        self._forget(record)

    def _forget(self, record: Record) -> None:
        for leftover in record.leftovers:
            Path(leftover).unlink(missing_ok=True)
        self._state.records.pop(record.name, None)
        self._state.save()

    def _stop_children(self) -> None:
        for name, child in reversed(list(self._children.items())):
            record = self._state.records.get(name)
            if record is not None and record.process.pid == child.pid:
                self._stop(record)
            else:  # interrupted between its start and its record
                child.kill()
                child.wait()


def _check_is_free(variable: str, port: int, host: str) -> None:
    if not ports.is_free(port, host):
        raise LocalError(f"{host}:{port} is taken by another program; choose a port with {variable}")


def condition(record: Record) -> tuple[str, bool]:
    """What has become of a service, and whether it runs and answers: a process that is there may still not."""
    if not record.is_running:
        return "has ended", False
    answers = _answers(record)
    return f"runs as process {record.process.pid}{'' if answers else ' but does not answer'}", answers


def _answers(record: Record) -> bool:
    """A worker has no port: of it no more can be told than whether its process was stopped."""
    return probes.answers(record.address) and not record.process.is_stopped


def changed(service: Service, record: Record) -> list[str]:
    """Names of the settings, the command among them, with which the service does not run."""
    now = _digests(service)
    return sorted(name for name in now | record.settings if now.get(name) != record.settings.get(name))


def differing(record: Record, environ: Mapping[str, str]) -> list[str]:
    """Names of our settings in `environ` with which the service does not run."""
    given = {name: value for name, value in environ.items() if name.startswith("OMNIVOICE_") and value}
    if given.get(API_PORT) == "0":  # any port will do
        del given[API_PORT]
    return sorted(name for name, value in given.items() if record.settings.get(name) != _digest(value))


def _digests(service: Service) -> dict[str, str]:
    """SHA-256 of the command and of each setting's value, by name."""
    values: dict[str, object] = {
        name: value for name, value in service.environment.items() if name.startswith(SETTINGS_PREFIXES)
    }
    values["command line"] = service.command
    return {name: _digest(value) for name, value in values.items()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
