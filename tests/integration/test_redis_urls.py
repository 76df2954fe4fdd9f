"""Jobs are done over every kind of address that `OMNIVOICE_REDIS_URL` takes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers import free_ports, run_redis
from workers import Desk, assert_speaks, run_worker

from worker.jobs.broker import publish
from worker.jobs.errors import StartupError
from worker.jobs.models import Queue
from worker.jobs.names import new_job_id
from worker.jobs.settings import Settings
from worker.jobs.startup import check_redis


@contextmanager
def over_a_socket(folder: Path) -> Iterator[str]:
    with run_redis(folder, None, "--unixsocket", str(folder / "redis.sock")):
        yield f"unix://{folder / 'redis.sock'}?db=1"


@contextmanager
def over_tls(folder: Path) -> Iterator[str]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key = folder / "own.crt", folder / "own.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    [port] = free_ports(1)
    options = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    options += ["--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]
    try:
        with run_redis(folder, None, *options):
            yield f"rediss://127.0.0.1:{port}/1?ssl_ca_certs={certificate}"
    except RuntimeError as error:
        if "tls" in str(error).lower():
            pytest.skip("this redis-server was built without TLS")
        raise


@pytest.mark.parametrize("server", [over_a_socket, over_tls])
def test_jobs_are_done(
    server: object, redis_url: str, settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    assert callable(server)
    with server(tmp_path) as url, run_worker(environment, tmp_path / "worker.log", redis_url=url) as worker:
        desk = Desk(settings.model_copy(update={"redis_url": url}))
        [record] = desk.wait_ended([desk.submit("Over whatever it is.")])
        assert_speaks(desk.audio(record), "Over whatever it is.")
        desk.close()
        assert not worker.has_logged("Secure redis scheme"), "kombu's warning of a connection that trusts anybody"


def test_a_certificate_of_nobody_known_is_refused(redis_url: str, settings: Settings, tmp_path: Path) -> None:
    with over_tls(tmp_path) as url:
        stranger = Desk(settings.model_copy(update={"redis_url": url.partition("?")[0]}))
        assert not publish(stranger.celery, new_job_id(), Queue.INTERACTIVE)
        with pytest.raises(StartupError, match="certificate"):
            check_redis(stranger.settings)
        stranger.close()
