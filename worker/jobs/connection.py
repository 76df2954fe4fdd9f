"""The one place where a Redis client is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from worker.jobs.sentinel import SentinelUrl
from worker.jobs.settings import Settings

SOCKET_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 3.0
HEALTH_CHECK_SECONDS = 5
PROBE_SECONDS = 2.0
ANSWER_SECONDS = 2.5
"""For each of `MAX_TIMEOUTS` tries where a client waits: within 5 s it hears that Redis hangs."""
MAX_TIMEOUTS = 2
MAX_CONNECTIONS = 2**31
"""None, that is: threads bound them. redis-py's own bound is 100, and fails the call that would need one more: API and
worker have 128 threads by default, which all may ask at once."""

T = TypeVar("T")


class RedisHangs(RedisTimeout):
    """Two connections in a row got no answer: to repeat that once more, whoever is to, would cost as much again."""


class PatientRetry(Retry):
    """Repeats after lost connections, and after one that did not answer in time: a half-open one costs that. Where its
    successor does not answer either, Redis itself hangs, and a client must hear of it before it gives up. So must
    it where Sentinels know no primary: they take seconds to make one.

    redis-py repeats a command, and within it the connecting and the look at a connection's health, each by a call of
    its own here: one that hangs is repeated by none of them."""

    def call_with_retry(
        self,
        do: Callable[[], T],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> T:
        num_timeouts = 0

        def give_up_in_time(error: Exception, *count: int) -> None:
            nonlocal num_timeouts
            fail(error, *count)  # it closes the connection
            if isinstance(error, RedisHangs):
                raise error
            num_timeouts += isinstance(error, (RedisTimeout, TimeoutError, MasterNotFoundError))
            if num_timeouts == MAX_TIMEOUTS:
                raise error if isinstance(error, MasterNotFoundError) else RedisHangs(str(error)) from error

        return super().call_with_retry(do, give_up_in_time, is_retryable, with_failure_count)


def connect(settings: Settings) -> Redis:
    """A client for `settings.redis_url` that decodes to `str`; connects at the first command.

    Without the timeouts a half-open connection (a firewall that forgot it, a host that vanished) hangs for ever. A
    command is repeated after a lost connection: every script of the ledger may run twice with the effect of once.
    """
    return _client(settings, _patient_retry(), {})


def connect_for_clients(settings: Settings) -> Redis:
    """As `connect`, for an API, whose clients wait: a command has `ANSWER_SECONDS` for each of its tries."""
    patience = {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": ANSWER_SECONDS}
    return _client(settings, _patient_retry(), patience)


def connect_to_probe(settings: Settings) -> Redis:
    """As `connect`, to ask whether Redis answers: it has `PROBE_SECONDS`, and nothing is repeated."""
    patience = {
        "socket_timeout": PROBE_SECONDS,
        "socket_connect_timeout": PROBE_SECONDS,
        "health_check_interval": 0,
    }
    return _client(settings, Retry(NoBackoff(), retries=0), patience)


def _patient_retry() -> PatientRetry:
    return PatientRetry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), retries=3)


def _client(settings: Settings, retry: Retry, patience: dict[str, Any]) -> Redis:
    """`patience` goes before the usual timeouts, those of Sentinels included."""
    network = over_a_network() | patience
    options: dict[str, Any] = {"decode_responses": True, "retry": retry, "max_connections": MAX_CONNECTIONS}
    if url := SentinelUrl.parse(settings.redis_url):
        options |= {"db": url.db, "username": url.username, "password": url.password, **network}
        sentinels: Any = Sentinel  # it has no types
        asked: Any = sentinels(url.sentinels, sentinel_kwargs=sentinel_options() | patience)
        primary: Redis = asked.master_for(url.service, **options)
        return primary
    if settings.redis_url.startswith("unix://"):
        options |= {name: network[name] for name in ("socket_timeout", "health_check_interval")}
        return Redis.from_url(settings.redis_url, **options)
    return Redis.from_url(settings.redis_url, **options, **network)


def over_a_network() -> dict[str, Any]:
    """Options of a connection, redis-py's and kombu's alike: after how long it is given up."""
    return {
        "socket_timeout": SOCKET_TIMEOUT_SECONDS,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_SECONDS,
    }


def sentinel_options() -> dict[str, Any]:
    """Options of a connection to a Sentinel. Each is asked once, then the next; `PatientRetry` asks all again."""
    return {**over_a_network(), "retry": Retry(NoBackoff(), retries=0), "max_connections": MAX_CONNECTIONS}
