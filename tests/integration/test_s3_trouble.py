"""The object store misbehaves while jobs run: they wait, or are tried again, and each ends once with its own audio."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import botocore.auth
import pytest
from promises import Promises
from servers import S3Server, s3_client, wait_until
from soak.proxy import Proxy, proxy_to
from workers import Desk, run_worker

from worker.jobs.errors import StorageError
from worker.jobs.models import Status
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[Proxy]:
    with proxy_to(s3.endpoint) as proxy:
        yield proxy


TROUBLE: dict[str, Callable[[Proxy], None]] = {
    "500": lambda proxy: proxy.answer_with(500, every=1),
    "503": lambda proxy: proxy.answer_with(503, every=1),
    "403": lambda proxy: proxy.answer_with(403, every=1),
    "slow": lambda proxy: proxy.slow_down(every=1, seconds=0.5),
    "reset in the body": lambda proxy: proxy.break_bodies(every=1),
}


def test_trouble_that_passes(promises: Promises, proxy: Proxy, environment: dict[str, str], tmp_path: Path) -> None:
    """One after the other, each with jobs of its own; every request is struck until five were."""
    settings = {"s3_endpoint": f"http://127.0.0.1:{proxy.port}", "max_attempts": 9, "lease_seconds": 1}
    num_jobs = 0
    with run_worker(environment, tmp_path / "worker.log", **settings) as worker:
        for kind, begin in TROUBLE.items():
            begin(proxy)
            before = proxy.num_struck
            for index in range(5):
                promises.submit(f"Number {index} of {kind}.")
            num_jobs += 5
            wait_until(lambda before=before: proxy.num_struck >= before + 5, what=f"trouble: {kind}")
            proxy.behave()
            assert promises.assert_kept(max_attempts=9) == {"succeeded": num_jobs}, kind
        assert worker.process.poll() is None


def test_credentials_that_are_refused_for_good_end_in_failed_jobs(
    desk: Desk, promises: Promises, proxy: Proxy, environment: dict[str, str], tmp_path: Path
) -> None:
    settings = {"s3_endpoint": f"http://127.0.0.1:{proxy.port}", "max_attempts": 2, "lease_seconds": 0.5}
    with run_worker(environment, tmp_path / "worker.log", **settings) as worker:
        proxy.answer_with(403, every=1)
        job_id = promises.submit("In vain.")
        assert promises.assert_kept(max_attempts=2) == {"failed": 1}
        proxy.behave()
        promises.submit("In order again.")
        assert promises.assert_kept(max_attempts=2) == {"failed": 1, "succeeded": 1}
        assert worker.process.poll() is None
    error = desk.record(job_id).error
    assert error is not None
    assert error.type == "storage-error"
    assert "refuses the credentials" in error.detail


def test_a_bucket_that_goes_and_comes_back(
    settings: Settings, s3: S3Server, environment: dict[str, str], tmp_path: Path
) -> None:
    bucket = settings.s3_prefix
    with (
        contextlib.closing(s3_client(s3)) as client,
        contextlib.closing(Desk(settings.model_copy(update={"s3_bucket": bucket}))) as desk,
    ):
        client.create_bucket(Bucket=bucket)
        promises = Promises(desk, s3)
        limits = {"s3_bucket": bucket, "max_attempts": 9, "lease_seconds": 1}
        with run_worker(environment, tmp_path / "worker.log", **limits) as worker:
            client.delete_bucket(Bucket=bucket)
            job_id = promises.submit("Where to?")
            wait_until(lambda: worker.has_logged("object store: bucket"), what="the missing bucket")
            assert desk.record(job_id).status is not Status.FAILED
            client.create_bucket(Bucket=bucket)
            assert promises.assert_kept(max_attempts=9) == {"succeeded": 1}
            assert worker.process.poll() is None


def test_a_wrong_clock_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures hold the time, and stores refuse those of other times."""

    def an_hour_ago() -> datetime:
        return datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1)

    monkeypatch.setattr(botocore.auth, "get_current_datetime", an_hour_ago)
    with pytest.raises(StorageError, match="clock"):
        ObjectStore(settings).put("audio/late", b"data", "audio/wav")
