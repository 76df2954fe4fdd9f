"""The ledger's Lua scripts, each one atomic on the server."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis import Redis

NAMES = (
    *("submit", "claim", "start", "pause", "heartbeat", "requeue", "finish", "cancel", "overdue", "refill", "revive"),
    "forget",
)


class Scripts:
    """The scripts of `lua/`, the shared preamble before each, registered with a client.

    Every script is called with the key prefix first; each file's head says what else it takes and returns.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        folder = resources.files("worker.jobs") / "lua"
        preamble = (folder / "preamble.lua").read_text(encoding="utf-8")
        self._redis = redis
        self._prefix = prefix
        self._scripts = {
            name: redis.register_script(preamble + (folder / f"{name}.lua").read_text(encoding="utf-8"))
            for name in NAMES
        }

    def run(self, name: str, keys: Sequence[str], *args: str | int | float) -> Any:
        """One script, one round trip."""
        return self._scripts[name](keys=list(keys), args=[self._prefix, *args])

    def run_each(self, name: str, calls: Sequence[tuple[str, Sequence[str | int | float]]]) -> list[Any]:
        """One script for many jobs, (job's key, arguments) each, in one round trip; atomic for each job alone."""
        if not calls:
            return []
        with self._redis.pipeline(transaction=False) as pipeline:
            for key, args in calls:
                self._scripts[name](keys=[key], args=[self._prefix, *args], client=pipeline)
            return list(pipeline.execute())
