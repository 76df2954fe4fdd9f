"""Settings: what the environment may say, and how it is told what is wrong."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from worker.jobs.errors import SettingsError
from worker.jobs.sentinel import SentinelUrl
from worker.jobs.settings import Settings


def refusal(**environ: str) -> str:
    with pytest.raises(SettingsError) as refused:
        Settings.from_environment({f"OMNIVOICE_{name}": value for name, value in environ.items()})
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_defaults_are_those_of_the_contract() -> None:
    settings = Settings.from_environment({"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s"})
    assert (settings.max_wait_ms, settings.max_batch_requests, settings.max_batch_tokens) == (50, 32, 16_384)
    assert (settings.api_host, settings.api_port) == ("127.0.0.1", 8080)
    assert (settings.lease_seconds, settings.max_attempts, settings.retention_hours) == (15, 3, 72)
    assert settings.insecure is False


def test_values_are_read_by_their_type() -> None:
    settings = Settings.from_environment(
        {
            "OMNIVOICE_MAX_WAIT_MS": "20",
            "OMNIVOICE_LEASE_SECONDS": "2.5",
            "OMNIVOICE_INSECURE": "1",
            "OMNIVOICE_DEVICE": "cuda:3",
            "OMNIVOICE_LOG_LEVEL": "DEBUG",
            "OMNIVOICE_S3_ENDPOINT": "http://127.0.0.1:8333/",
        }
    )
    assert (settings.max_wait_ms, settings.lease_seconds, settings.insecure) == (20, 2.5, True)
    assert (settings.device, settings.log_level, settings.s3_endpoint) == ("cuda:3", "debug", "http://127.0.0.1:8333")


def test_an_empty_value_counts_as_absent() -> None:
    assert Settings.from_environment({"OMNIVOICE_MAX_QUEUE": "", "OMNIVOICE_S3_ENDPOINT": ""}) == Settings()


def test_an_unknown_variable_names_itself_and_its_neighbour() -> None:
    assert refusal(REDIS_URI="redis://x") == "OMNIVOICE_REDIS_URI is not a setting; did you mean OMNIVOICE_REDIS_URL?"
    assert refusal(QWERTZ="1") == "OMNIVOICE_QWERTZ is not a setting"
    assert refusal(max_queue="1").startswith("OMNIVOICE_max_queue is not a setting; did you mean OMNIVOICE_MAX_QUEUE")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_WAIT_MS", "soon"),
        ("MAX_WAIT_MS", "-1"),
        ("MAX_WAIT_MS", "1.5"),
        ("MAX_BATCH_REQUESTS", "0"),
        ("LEASE_SECONDS", "nan"),
        ("LEASE_SECONDS", "inf"),
        ("LEASE_SECONDS", "0"),
        ("API_PORT", "65536"),
        ("INSECURE", "maybe"),
        ("MODE", "steps"),
        ("SYNTHESIZER", "tones"),
        ("DEVICE", "gpu"),
        ("DTYPE", "int8"),
        ("REDIS_URL", "127.0.0.1:6379"),
        ("REDIS_URL", "redis://"),
        ("REDIS_URL", "redis://one:6379/0;redis://two:6379/0"),
        ("REDIS_URL", "redis://one:6379,two:6379/0"),
        ("REDIS_URL", "redis://one:6379/jobs"),
        ("REDIS_PREFIX", "a b"),
        ("S3_ENDPOINT", "127.0.0.1:8333"),
        ("S3_ENDPOINT", "http://"),
        ("S3_ENDPOINT", "http://user:word@host"),
        ("S3_BUCKET", "No_Bucket"),
        ("S3_PREFIX", "/absolute"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    assert refusal(**{name: value}).startswith(f"OMNIVOICE_{name}: ")


def test_a_refusal_says_what_is_allowed() -> None:
    assert refusal(DEVICE="gpu") == "OMNIVOICE_DEVICE: must be auto, cpu, cuda or cuda:N"
    assert refusal(INSECURE="maybe") == "OMNIVOICE_INSECURE: must be 0 or 1"
    for value in ("-1", "60001", "1.5", "soon"):
        assert refusal(MAX_WAIT_MS=value) == "OMNIVOICE_MAX_WAIT_MS: must be a whole number from 0 to 60000"
    assert refusal(RETENTION_HOURS="0") == "OMNIVOICE_RETENTION_HOURS: must be a number more than 0 and at most 8760"
    assert "'request' or 'step'" in refusal(MODE="steps")
    assert "redis://" in refusal(REDIS_URL="http://127.0.0.1")
    for name in ("S3_BUCKET", "S3_PREFIX", "REDIS_PREFIX"):
        assert re.search(r": must be .*letters, digits, ", refusal(**{name: "*"}))
        assert "pattern" not in refusal(**{name: "*"}), "a pattern is for programs"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hush-hush@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://user:hush-hush@host/1", "rediss://user:***@host/1"),
        ("unix:///run/redis.sock?db=1&password=hush-hush", "unix:///run/redis.sock?db=1&password=***"),
        ("redis+sentinel://u:hush-hush@one:1,two/primary/1", "redis+sentinel://u:***@one:1,two/primary/1"),
        ("redis+sentinel://one:1,two/primary", "redis+sentinel://one:1,two/primary"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    settings = Settings.from_environment({"OMNIVOICE_REDIS_URL": url})
    assert settings.describe()["OMNIVOICE_REDIS_URL"] == shown
    for text in (str(settings.describe()), repr(settings), str(settings)):
        assert "hush-hush" not in text


def test_a_refused_secret_is_not_shown() -> None:
    assert "hush-hush" not in refusal(REDIS_URL="http://:hush-hush@host")
    with pytest.raises(ValidationError) as refused:
        Settings(redis_url="http://:hush-hush@host")
    assert "hush-hush" not in str(refused.value)


def test_describe_names_every_variable() -> None:
    described = Settings().describe()
    assert set(described) == {f"OMNIVOICE_{name.upper()}" for name in Settings.model_fields}
    # What is printed can be given back, but for hidden passwords.
    assert Settings.from_environment(described) == Settings()


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Settings().max_queue = 1  # type: ignore[misc]


@pytest.mark.parametrize("scheme", ["sentinel", "rediss+sentinel", "redis-cluster", "redis+cluster"])
def test_addresses_of_many_servers_are_refused_by_name(scheme: str) -> None:
    line = refusal(REDIS_URL=f"{scheme}://:hunter2@one:26379/mymaster")
    assert line.startswith(
        "OMNIVOICE_REDIS_URL: must be redis://, rediss:// or unix:// and one server, or redis+sentinel"
    )
    assert "Cluster is not supported" in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    "rest",
    [
        "one",
        "one/",
        "/primary",
        "one,/primary",
        "one:0/primary",
        "one:65536/primary",
        "one:port/primary",
        ":hunter2@/primary",
        ":hunter2@one/primary/first",
        ":hunter2@one/primary/0/1",
        ":hunter2@one/a primary",
        ":hunter2@one/primary?db=1",
        ":hunter2/@one/primary",
        "hunter2@one/primary",
        ":hunter2@one;two/primary",
        "[::1/primary",
    ],
)
def test_an_address_of_sentinels_is_refused_with_its_form(rest: str) -> None:
    line = refusal(REDIS_URL=f"redis+sentinel://{rest}")
    assert line.startswith(
        "OMNIVOICE_REDIS_URL: must be redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/"
    )
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("one/primary", SentinelUrl((("one", 26379),), "primary", 0, None, None)),
        ("one:1,two.example/p-1.x_y/15", SentinelUrl((("one", 1), ("two.example", 26379)), "p-1.x_y", 15, None, None)),
        (":a:b%2Fc@[::1]:26380,[::2]/m", SentinelUrl((("::1", 26380), ("::2", 26379)), "m", 0, None, "a:b/c")),
        ("user:p%40s@one/m/1", SentinelUrl((("one", 26379),), "m", 1, "user", "p@s")),
    ],
)
def test_addresses_of_sentinels_are_taken(rest: str, expected: SentinelUrl) -> None:
    url = Settings.from_environment({"OMNIVOICE_REDIS_URL": f"redis+sentinel://{rest}"}).redis_url
    assert SentinelUrl.parse(url) == expected


def test_sentinels_as_kombu_writes_them() -> None:
    url = SentinelUrl.parse("redis+sentinel://user:p%40s@one,[::2]:1/m/3")
    assert url is not None
    assert url.as_kombu_writes_it() == "sentinel://user:p%40s@one:26379/3;sentinel://user:p%40s@[::2]:1/3"
    assert "p@s" not in repr(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://127.0.0.1:6379/15",
        "redis://user:p%40ss@[::1]:6379/0",
        "redis://:a:b%2Fc@host:1/0",
        "rediss://host.example:6380/0?ssl_ca_certs=/etc/own.crt",
        "unix:///run/redis.sock?db=1&password=x",
    ],
)
def test_addresses_of_one_redis_are_taken(url: str) -> None:
    assert Settings.from_environment({"OMNIVOICE_REDIS_URL": url}).redis_url == url
