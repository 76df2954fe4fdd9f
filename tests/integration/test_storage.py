"""The object store, on a real SeaweedFS."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from servers import S3Server, SwallowingProxy, free_ports, run_seaweedfs, s3_client, wait_until
from soak.proxy import Proxy, proxy_to

from worker.jobs.errors import StartupError, StorageError
from worker.jobs.settings import Settings
from worker.jobs.startup import check_storage
from worker.jobs.storage import ObjectStore, Patience

KEY = "audio/job_0/1.wav"


@pytest.fixture
def store(settings: Settings) -> ObjectStore:
    return ObjectStore(settings)


def fetch(url: str) -> tuple[bytes, dict[str, str]]:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read(), dict(response.headers)


def status_of(url: str) -> int:
    try:
        fetch(url)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return 200


def refusal(settings: Settings, retryable: bool) -> str:
    """What `check` says, which must be one line; the start-up check must say the same."""
    with pytest.raises(StorageError) as refused:
        ObjectStore(settings).check()
    assert refused.value.retryable is retryable
    assert "\n" not in str(refused.value)
    with pytest.raises(StartupError):
        check_storage(settings)
    return str(refused.value)


def test_a_usable_bucket_passes_and_nothing_is_left_in_it(store: ObjectStore, s3: S3Server, settings: Settings) -> None:
    store.check()
    check_storage(settings)
    listed = s3_client(s3).list_objects_v2(Bucket=s3.bucket, Prefix=f"{settings.s3_prefix}/")
    assert listed["KeyCount"] == 0


@pytest.mark.parametrize("data", [b"", b"RIFF", bytes(range(256)) * 8192], ids=["empty", "short", "2 MiB"])
def test_what_is_put_can_be_got(store: ObjectStore, s3: S3Server, settings: Settings, data: bytes) -> None:
    digest = hashlib.sha256(data).hexdigest()
    store.put(KEY, data, "audio/wav", digest)
    assert store.get(KEY) == data
    head = s3_client(s3).head_object(Bucket=s3.bucket, Key=f"{settings.s3_prefix}/{KEY}")
    assert (head["ContentType"], head["ContentLength"]) == ("audio/wav", len(data))
    assert head["Metadata"]["sha256"] == digest


def test_checksums_can_be_left_out_for_old_stores(settings: Settings) -> None:
    store = ObjectStore(settings.model_copy(update={"s3_checksums": "when_required"}))
    store.put(KEY, b"data", "audio/wav")
    assert store.get(KEY) == b"data"


def test_an_object_is_written_once(store: ObjectStore) -> None:
    store.put(KEY, b"first", "audio/wav")
    store.put(KEY, b"first", "audio/wav")  # a repeated call whose first answer was lost
    with pytest.raises(StorageError, match="other bytes") as refused:
        store.put(KEY, b"second", "audio/wav")
    assert not refused.value.retryable
    assert store.get(KEY) == b"first"


def test_a_write_whose_answer_is_lost_is_done_once(settings: Settings, s3: S3Server) -> None:
    port = urlsplit(s3.endpoint).port
    assert port is not None
    with contextlib.closing(SwallowingProxy(port)) as proxy:
        store = ObjectStore(settings.model_copy(update={"s3_endpoint": f"http://127.0.0.1:{proxy.port}"}))
        store.ping()
        proxy.swallow()
        store.put(KEY, b"data", "audio/wav")
        assert proxy.swallowed == 1
        assert store.get(KEY) == b"data"


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[Proxy]:
    with proxy_to(s3.endpoint) as proxy:
        yield proxy


@pytest.mark.parametrize(
    "patience", [Patience(4, 0.5, 5.0), Patience(2, 0.5, None)], ids=["as in a worker", "as in the API"]
)
def test_one_half_open_connection_costs_one_try_however_many_there_are(
    settings: Settings, proxy: Proxy, patience: Patience
) -> None:
    store = ObjectStore(settings.model_copy(update={"s3_endpoint": f"http://127.0.0.1:{proxy.port}"}), patience)
    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: (barrier.wait(10), store.ping()), range(8)))
    proxy.forget_all()
    wait_until(lambda: proxy.num_struck >= 4, what="connections that are kept")
    began = time.monotonic()
    store.put(KEY, b"data", "audio/wav")
    # boto3 waits up to a second for "100 Continue", and up to another one between two tries.
    assert time.monotonic() - began < 1 + 0.5 + 1 + 1
    assert store.get(KEY) == b"data"


def test_a_slow_store_is_waited_for(settings: Settings, proxy: Proxy) -> None:
    settings = settings.model_copy(update={"s3_endpoint": f"http://127.0.0.1:{proxy.port}"})
    store = ObjectStore(settings, Patience(2, 0.3, 10.0))
    proxy.slow_down(1, seconds=0.5)
    store.put(KEY, bytes(20_000), "audio/wav")
    proxy.behave()
    assert store.get(KEY) == bytes(20_000)


def test_an_object_of_another_writer_is_adopted_by_its_bytes(
    store: ObjectStore, s3: S3Server, settings: Settings
) -> None:
    s3_client(s3).put_object(Bucket=s3.bucket, Key=f"{settings.s3_prefix}/{KEY}", Body=b"same")  # no digest noted
    store.put(KEY, b"same", "audio/wav")
    with pytest.raises(StorageError, match="other bytes"):
        store.put(KEY, b"other", "audio/wav")


def test_of_writers_at_once_one_wins_and_the_rest_learn_it(store: ObjectStore) -> None:
    barrier = threading.Barrier(8)

    def write(index: int) -> bool:
        barrier.wait(10)
        try:
            store.put(KEY, b"%d" % index, "audio/wav")
        except StorageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert sum(won) == 1
    assert store.get(KEY) == b"%d" % won.index(True)


def test_a_deleted_object_is_gone_and_deleting_again_is_fine(store: ObjectStore) -> None:
    store.put(KEY, b"data", "audio/wav")
    assert store.exists(KEY)
    store.delete(KEY)
    store.delete(KEY)
    assert not store.exists(KEY)
    with pytest.raises(StorageError, match="does not exist") as missing:
        store.get(KEY)
    assert store.uri(KEY) in str(missing.value)


def test_a_presigned_url_reads_without_credentials(store: ObjectStore) -> None:
    store.put(KEY, b"data", "audio/wav")
    body, headers = fetch(store.presign(KEY, 60, filename='a "b".wav'))
    assert body == b"data"
    assert headers["Content-Type"] == "audio/wav"
    assert headers["Content-Disposition"] == "attachment; filename*=UTF-8''a%20%22b%22.wav"


def test_a_presigned_url_ends_and_opens_nothing_else(store: ObjectStore) -> None:
    store.put(KEY, b"data", "audio/wav")
    store.put("audio/job_1/1.wav", b"data", "audio/wav")
    short = store.presign(KEY, 1)
    assert status_of(store.presign(KEY, 60)) == 200
    assert status_of(store.presign(KEY, 60).replace("job_0", "job_1")) == 403
    wait_until(lambda: status_of(short) == 403, 10, "the end of the URL's time")


def test_presigned_urls_name_the_public_endpoint(settings: Settings) -> None:
    public = ObjectStore(settings.model_copy(update={"s3_public_endpoint": "https://audio.example.org"}))
    url = urlsplit(public.presign(KEY, 60))
    assert (url.scheme, url.netloc) == ("https", "audio.example.org")
    assert url.path == f"/{settings.s3_bucket}/{settings.s3_prefix}/{KEY}"


def test_a_presigned_url_for_the_public_endpoint_works_there(settings: Settings, s3: S3Server) -> None:
    other_name = s3.endpoint.replace("127.0.0.1", "localhost")
    public = ObjectStore(settings.model_copy(update={"s3_public_endpoint": other_name}))
    public.put(KEY, b"data", "audio/wav")
    url = public.presign(KEY, 60)
    assert url.startswith(other_name)
    assert fetch(url)[0] == b"data"


def test_uris_and_keys_lead_to_one_another(store: ObjectStore, settings: Settings) -> None:
    assert store.uri(KEY) == f"s3://{settings.s3_bucket}/{settings.s3_prefix}/{KEY}"
    assert store.key_of(store.uri(KEY)) == KEY
    with pytest.raises(StorageError, match="not under"):
        store.key_of(f"s3://{settings.s3_bucket}/elsewhere/{KEY}")


def test_a_wrong_secret_is_named_but_not_shown(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-word")
    message = refusal(settings, retryable=False)
    assert "refuses the credentials" in message
    assert "wrong-word" not in message


def test_an_unknown_key_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert "refuses the credentials" in refusal(settings, retryable=False)


def test_no_credentials_are_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    assert "set AWS_ACCESS_KEY_ID" in refusal(settings, retryable=False)


def test_a_missing_bucket_is_named(settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"s3_bucket": "no-such-bucket"})
    assert "bucket no-such-bucket" in refusal(elsewhere, retryable=False)
    with pytest.raises(StorageError, match=r"bucket no-such-bucket .* does not exist"):
        ObjectStore(elsewhere).put(KEY, b"data", "audio/wav")


@pytest.mark.s3
def test_a_store_without_space_is_named_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_seaweedfs(tmp_path, is_full=True) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        start = time.monotonic()
        with pytest.raises(StartupError, match="disk full") as caught:
            check_storage(Settings(s3_endpoint=server.endpoint, s3_bucket=server.bucket))
    assert time.monotonic() - start < 15
    assert "\n" not in str(caught.value)


def test_an_endpoint_where_nothing_listens_is_named(settings: Settings) -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    message = refusal(settings.model_copy(update={"s3_endpoint": endpoint}), retryable=True)
    assert "cannot be reached" in message
    assert endpoint in message
