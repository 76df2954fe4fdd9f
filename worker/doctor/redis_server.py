"""Redis: is it there, may we do what we do, does it keep what it is given, does its clock agree."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from worker.doctor.findings import Finding, error, ok, one_line, until, warning
from worker.jobs import names
from worker.jobs.connection import connect
from worker.jobs.sentinel import SENTINEL_FORM
from worker.jobs.settings import Settings
from worker.jobs.startup import OLDEST_REDIS, has_hash_tag

MAX_SKEW_SECONDS = 2.0
MEMORY_SHARE = 0.9
_CONF = "infra/redis/redis.conf sets it"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_redis(settings: Settings) -> list[Finding]:
    """Every finding, up to one that keeps the others from being looked for. Leaves no key behind."""
    where = settings.describe()["OMNIVOICE_REDIS_URL"]
    return until(_look(settings, where), lambda problem: _told(problem, where))


def _told(problem: Exception, where: str) -> Finding | None:
    match problem:
        case AuthenticationError():
            text = f"{where} refuses the password: {one_line(problem)}"
            remedy = "put user and password into OMNIVOICE_REDIS_URL: redis://USER:PASSWORD@HOST"
            return error("connection", text, remedy)
        case NoPermissionError():
            remedy = (
                "give the user INFO, TIME, scripts, publish and subscribe, and all commands on keys under the prefix"
            )
            return error("permissions", f"{where}: {one_line(problem)}", remedy)
        case RedisError() | OSError():
            remedy = "start Redis, or correct OMNIVOICE_REDIS_URL: redis://…, or for TLS rediss://… (with a certificate"
            remedy += f" authority of your own: ?ssl_ca_certs=FILE), or for Sentinel {SENTINEL_FORM}"
            return error("connection", f"{where} cannot be used: {one_line(problem)}", remedy)
    return None


def _look(settings: Settings, where: str) -> Iterator[Finding]:
    with _once(settings) as redis:
        facts: dict[str, Any] = redis.info()
        yield ok("connection", where)
        yield _version(facts)
        yield from _access(redis, settings)
        yield _writes(redis, settings)
        yield from _persistence(redis, facts)
        yield _eviction(facts)
        yield from _memory(facts)
        yield from _cluster(settings, facts)
        yield _clock(redis)


def _once(settings: Settings) -> Redis:
    """A client that tries once: somebody waits for the report."""
    redis = connect(settings)
    redis.set_retry(Retry(NoBackoff(), retries=0))
    return redis


def _version(facts: Mapping[str, Any]) -> Finding:
    version = str(facts["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
        return error("version", version, f"install {'.'.join(map(str, OLDEST_REDIS))} or newer")
    return ok("version", version)


def _access(redis: Redis, settings: Settings) -> Iterator[Finding]:
    scheme = urlsplit(settings.redis_url).scheme
    is_here = scheme == "unix" or _host(redis) in _LOOPBACK
    if scheme == "rediss":
        yield ok("encryption", "TLS")
    elif is_here:
        yield ok("encryption", "not needed on this machine")
    else:
        text = "none: whoever sees the network's packets reads texts and passwords"
        yield warning("encryption", text, "use rediss:// (not with Sentinel) unless the network is yours alone")
    if not _lets_strangers_in(settings):
        yield ok("password", "asked for")
    elif is_here:
        yield ok("password", "none, on this machine")
    else:
        text = "none: whoever reaches the port reads and changes every job"
        yield warning(
            "password", text, "set requirepass or an ACL, and OMNIVOICE_REDIS_URL; or keep others off the port"
        )


def _host(redis: Redis) -> str:
    """Of the primary, where Sentinels name it."""
    pool: Any = redis.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        return str(pool.master_address[0])
    return str(pool.connection_kwargs.get("host") or "localhost")


def _lets_strangers_in(settings: Settings) -> bool:
    stranger = _once(settings)
    options = stranger.connection_pool.connection_kwargs
    for name in ("username", "password", "credential_provider"):
        options.pop(name, None)
    try:
        with stranger:
            return bool(stranger.ping())
    except RedisError:
        return False


def _writes(redis: Redis, settings: Settings) -> Finding:
    """A key of its own that lives for a minute at most, and a script like the ledger's."""
    key = f"{settings.redis_prefix}:doctor:{names.new_job_id()}"
    script = "redis.call('TIME') return redis.call('GET', KEYS[1])"
    try:
        redis.set(key, "1", ex=60)
        found = redis.eval(script, 1, key)
    except RedisError as problem:
        remedy = "free memory or disk, make it a primary, or give the user the right to write and to run scripts"
        return error("writes", one_line(problem), remedy)
    finally:
        _forget(redis, key)
    if found != "1":
        return error("writes", "a script does not see what was written", "connect to the primary itself")
    return ok("writes", "keys and scripts")


def _forget(redis: Redis, key: str) -> None:
    try:
        redis.delete(key)
    except RedisError:
        return  # a server that takes no writes has not got it, and any other forgets it within a minute


def _persistence(redis: Redis, facts: Mapping[str, Any]) -> Iterator[Finding]:
    if not facts.get("aof_enabled"):
        text = "off: accepted jobs are lost when Redis restarts"
        yield error("append-only file", text, f"set `appendonly yes` ({_CONF})")
        return
    if facts.get("aof_last_write_status", "ok") != "ok":
        yield error("append-only file", "its last write failed", "free its disk, then look at Redis's log")
        return
    yield ok("append-only file", "on")
    try:
        policy = redis.config_get("appendfsync").get("appendfsync")
    except RedisError as problem:  # managed Redis has no CONFIG
        text = f"cannot be asked for: {one_line(problem)}"
        yield warning("appendfsync", text, "see that whoever runs this Redis has set everysec or always")
        return
    if policy == "no":
        text = "no: the system decides when, so a crash of the host may lose half a minute of accepted jobs"
        yield error("appendfsync", text, f"set `appendfsync everysec` ({_CONF}), or always")
    elif policy == "everysec":
        yield ok(
            "appendfsync", "everysec: a crash of its host loses up to a second of accepted jobs, two on a slow disk"
        )
    else:
        yield ok("appendfsync", f"{policy}: a crash of its host loses no accepted job")


def _eviction(facts: Mapping[str, Any]) -> Finding:
    policy = str(facts.get("maxmemory_policy", "noeviction"))
    remedy = f"set `maxmemory-policy noeviction` ({_CONF})"
    if policy.startswith("allkeys"):
        return error("eviction", f"{policy}: jobs are thrown away when memory is short", remedy)
    if policy != "noeviction":
        return warning("eviction", f"{policy}: ended jobs may be forgotten before their time", remedy)
    return ok("eviction", policy)


def _memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    limit, used = int(facts.get("maxmemory", 0)), int(facts["used_memory"])
    if limit and used > MEMORY_SHARE * limit:
        text = f"{used / limit:.0%} of maxmemory is used; when it is full, no job is accepted"
        yield warning("memory", text, "raise maxmemory, or shorten OMNIVOICE_RETENTION_HOURS")


def _cluster(settings: Settings, facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts.get("cluster_enabled") and not has_hash_tag(settings.redis_prefix):
        text = f"the prefix {settings.redis_prefix} spreads one script's keys over several nodes"
        yield error("cluster", text, f"set OMNIVOICE_REDIS_PREFIX={{{settings.redis_prefix}}}")


def _clock(redis: Redis) -> Finding:
    before = time.time()
    seconds, microseconds = redis.time()
    skew = seconds + microseconds / 1_000_000 - (before + time.time()) / 2
    if abs(skew) > MAX_SKEW_SECONDS:
        text = f"Redis's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
        return warning("clock", text, "let NTP keep both: times of jobs and presigned links are off by as much")
    return ok("clock", f"within {MAX_SKEW_SECONDS:g} s of this machine's")
