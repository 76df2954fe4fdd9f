"""Checks that `python -m api` and `python -m worker` make before they start anything."""

from __future__ import annotations

import re

from redis.exceptions import AuthenticationError, RedisError

from worker.jobs import names
from worker.jobs.connection import connect
from worker.jobs.errors import StartupError, StorageError
from worker.jobs.settings import Settings
from worker.jobs.storage import BRIEF, ObjectStore

OLDEST_REDIS = (6, 2)


def check_redis(settings: Settings) -> None:
    """Redis answers, is new enough, takes writes, and does not evict jobs. Raises `StartupError`."""
    where = settings.describe()["OMNIVOICE_REDIS_URL"]
    try:
        with connect(settings) as redis:
            facts = redis.info()
            redis.set(f"{settings.redis_prefix}:start", names.new_job_id(), ex=60)
    except AuthenticationError as error:
        raise StartupError(f"Redis at {where} refuses the password: {error}") from None
    except (RedisError, OSError) as error:
        raise StartupError(f"Redis at {where} cannot be used: {_one_line(error)}") from None
    _check_facts(where, facts)
    if facts.get("cluster_enabled") and not has_hash_tag(settings.redis_prefix):
        raise StartupError(
            f"Redis at {where} is a node of a Cluster, which spreads one script's keys over several nodes; use a "
            f"single primary, or OMNIVOICE_REDIS_PREFIX={{{settings.redis_prefix}}} and the node that holds its slot"
        )


def has_hash_tag(prefix: str) -> bool:
    """Whether a Cluster keeps all keys under `prefix` in one slot, on one node."""
    return re.search(r"\{[^}]+\}", prefix) is not None


def _check_facts(where: str, facts: dict[str, object]) -> None:
    version = str(facts["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
        raise StartupError(f"Redis at {where} is version {version}; {'.'.join(map(str, OLDEST_REDIS))} is the oldest")
    if facts.get("maxmemory") and str(facts.get("maxmemory_policy", "")).startswith("allkeys"):
        raise StartupError(
            f"Redis at {where} evicts any key when memory is short (maxmemory-policy {facts['maxmemory_policy']}), "
            "which loses jobs; set noeviction"
        )


def check_storage(settings: Settings) -> None:
    """The bucket exists and takes, gives and deletes an object. Raises `StartupError`."""
    try:
        ObjectStore(settings, BRIEF).check()
    except StorageError as error:
        raise StartupError(str(error)) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
