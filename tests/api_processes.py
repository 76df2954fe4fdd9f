"""`python -m api` as a process of its own, for tests over real HTTP."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from servers import free_ports, wait_until

START_SECONDS = 30.0


@dataclass(frozen=True)
class ApiProcess:
    """A running API: its base URL, its process and the file of its standard error."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextlib.contextmanager
def run_api(environment: dict[str, str], folder: Path, port: int | None = None) -> Iterator[ApiProcess]:
    port = port or free_ports(1)[0]
    log = folder / "api.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "api"],
            env={**environment, "OMNIVOICE_API_PORT": str(port)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    api = ApiProcess(f"http://127.0.0.1:{port}", process, log)
    try:
        wait_until(lambda: process.poll() is not None or lives(api.url), START_SECONDS, "the API's start")
        assert process.poll() is None, log.read_text()
        yield api
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def lives(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/livez", timeout=5).status_code == 200
    return False
