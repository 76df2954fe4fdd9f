"""The one place where a Redis client is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry

from worker.jobs.settings import Settings

SOCKET_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 3.0
HEALTH_CHECK_SECONDS = 5
MAX_TIMEOUTS = 2

T = TypeVar("T")


class PatientRetry(Retry):
    """Repeats after lost connections, and after one that did not answer in time: a half-open one costs that. Where its
    successor does not answer either, Redis itself hangs, and a client must hear of it before it gives up."""

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
            num_timeouts += isinstance(error, (RedisTimeout, TimeoutError))
            if num_timeouts == MAX_TIMEOUTS:
                raise error

        return super().call_with_retry(do, give_up_in_time, is_retryable, with_failure_count)


def connect(settings: Settings) -> Redis:
    """A client for `settings.redis_url` that decodes to `str`; connects at the first command.

    Without the timeouts a half-open connection (a firewall that forgot it, a host that vanished) hangs for ever. A
    command is repeated after a lost connection: every script of the ledger may run twice with the effect of once.
    """
    over_a_network: dict[str, Any] = {"socket_connect_timeout": CONNECT_TIMEOUT_SECONDS, "socket_keepalive": True}
    return Redis.from_url(
        settings.redis_url,
        decode_responses=True,
        socket_timeout=SOCKET_TIMEOUT_SECONDS,
        **({} if settings.redis_url.startswith("unix://") else over_a_network),
        health_check_interval=HEALTH_CHECK_SECONDS,
        retry=PatientRetry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), retries=3),
    )
