"""The one place where a Redis client is built."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from worker.jobs.settings import Settings

SOCKET_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 3.0
HEALTH_CHECK_SECONDS = 5


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
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), retries=3),
    )
