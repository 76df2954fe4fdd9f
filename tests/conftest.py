"""Fixtures for everything that needs a server. A missing one skips locally, with the reason, and fails in CI."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest
from botocore.loaders import JSONFileLoader
from redis import Redis
from servers import S3Server, ServerMissing, redis_program, run_redis, run_seaweedfs, weed_program

from worker.jobs.connection import connect
from worker.jobs.settings import Settings

if TYPE_CHECKING:  # what they import is loaded by the tests that ask for it
    from promises import Promises
    from workers import Desk

# Test processes side by side share the cores: with a thread of torch's for each core in each of them, all wait for one
# another, and on a busy machine three times as long as one thread takes. Before any import of torch.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# boto3 parses a megabyte of JSON for each of its sessions, 0.1 s, and tests have hundreds of stores of their own.
_read_json = functools.cache(JSONFileLoader().load_file)
JSONFileLoader.load_file = lambda self, file_path: _read_json(file_path)

# Two busy cores make any time limit for one example a flaky test; pytest-timeout bounds the whole.
hypothesis.settings.register_profile("omnivoice", deadline=None)
hypothesis.settings.load_profile("omnivoice")


def _need(program: Callable[[], str]) -> None:
    """Skip, or fail in CI, when a server's program is not on this machine."""
    try:
        program()
    except ServerMissing as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis, one for the whole run. Use `redis_settings` for a key prefix that no other test has."""
    _need(redis_program)
    with run_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real object store with one bucket, one for the whole run. Use `settings` for an object prefix of your own."""
    _need(weed_program)
    with run_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test has."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def redis_settings(redis_url: str, prefix: str) -> Settings:
    """Settings for tests that need no object store. Leases are short, so that one that lapses is not waited for."""
    return Settings(synthesizer="tone", tone_window_ms=5, redis_url=redis_url, redis_prefix=prefix, lease_seconds=0.3)


@pytest.fixture
def redis_client(redis_settings: Settings) -> Iterator[Redis]:
    """A client for the test's Redis; the keys under the test's prefix are removed at its end."""
    with connect(redis_settings) as client:
        yield client
        for key in client.scan_iter(f"{redis_settings.redis_prefix}:*", count=1000):
            client.delete(key)


@pytest.fixture
def s3_environment(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The store's credentials in this process's environment, where boto3 finds them."""
    for name, value in s3.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return s3


@pytest.fixture
def settings(redis_settings: Settings, redis_client: Redis, s3_environment: S3Server, prefix: str) -> Settings:
    """Settings with a key prefix and an object prefix of the test's own, on the real servers, with a lease of 2 s."""
    return redis_settings.model_copy(
        update={
            "s3_endpoint": s3_environment.endpoint,
            "s3_bucket": s3_environment.bucket,
            "s3_prefix": prefix,
            "lease_seconds": 2.0,
        }
    )


@pytest.fixture
def environment(settings: Settings, s3: S3Server) -> dict[str, str]:
    """The same settings as variables, for a process that a test starts (`python -m worker`, `python -m api`)."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMNIVOICE_", "AWS_"))}
    ours = {
        "OMNIVOICE_SYNTHESIZER": settings.synthesizer,
        "OMNIVOICE_TONE_WINDOW_MS": str(settings.tone_window_ms),
        "OMNIVOICE_REDIS_URL": settings.redis_url,
        "OMNIVOICE_REDIS_PREFIX": settings.redis_prefix,
        "OMNIVOICE_S3_PREFIX": settings.s3_prefix,
        "OMNIVOICE_LEASE_SECONDS": str(settings.lease_seconds),
    }
    return {**inherited, **s3.environment, **ours, "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    """Where a test hands jobs in past the API, and looks at what becomes of them."""
    from workers import Desk

    desk = Desk(settings)
    yield desk
    desk.close()


@pytest.fixture
def promises(desk: Desk, s3: S3Server) -> Promises:
    from promises import Promises

    return Promises(desk, s3)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses a server's fixture carries its marker, so that `-m 'not redis'` can be relied on."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "redis_url" in names:
            item.add_marker(pytest.mark.redis)
        if "s3" in names:
            item.add_marker(pytest.mark.s3)
