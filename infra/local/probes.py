"""Whether a service answers, yet or still: each probe is a question that the service's clients will ask too."""

from __future__ import annotations

from pathlib import Path

import boto3
import httpx
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from infra.local.credentials import read_identities
from infra.local.logs import Log
from worker.jobs.settings import Settings

TIMEOUT_SECONDS = 5.0
PATIENCE_SECONDS = 2.0
"""With a service that was ready once."""
WORKER_READY = '"event": "ready as '


def answers(address: str) -> bool:
    """Whether the server at a URL says anything, be it that it will not: a process that is stopped or hangs does not.

    True for an address that is no URL, which is nobody's to ask.
    """
    if address.startswith("http://"):
        try:
            httpx.get(address, timeout=PATIENCE_SECONDS, trust_env=False)
        except httpx.HTTPError:
            return False
    if address.startswith("redis://"):
        patience = {"socket_timeout": PATIENCE_SECONDS, "socket_connect_timeout": PATIENCE_SECONDS}
        try:
            with Redis.from_url(address, retry=Retry(NoBackoff(), retries=0), **patience) as client:
                client.ping()
        except BusyLoadingError:
            return True
        except (RedisError, OSError):
            return False
    return True


def redis_answers(url: str) -> bool:
    """Also False while Redis reads its append-only file: it listens by then but refuses commands."""
    try:
        with Redis.from_url(url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS) as client:
            return bool(client.ping())
    except (RedisError, OSError):
        return False


def bucket_takes_objects(endpoint: str, settings: Settings, identities: Path) -> bool:
    """Create the bucket where it is missing and write an object: the gateway answers before a volume takes one."""
    keys = read_identities(identities)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=settings.s3_region,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        config=Config(
            connect_timeout=TIMEOUT_SECONDS,
            read_timeout=TIMEOUT_SECONDS,
            retries={"total_max_attempts": 1},
            proxies={},
            s3={"addressing_style": "path"},
        ),
    )
    key = f"{settings.s3_prefix.rstrip('/')}/local-stack-probe".lstrip("/")
    try:
        try:
            client.head_bucket(Bucket=settings.s3_bucket)
        except ClientError:
            client.create_bucket(Bucket=settings.s3_bucket)
        client.put_object(Bucket=settings.s3_bucket, Key=key, Body=b"")
        client.delete_object(Bucket=settings.s3_bucket, Key=key)
    except (BotoCoreError, ClientError):
        return False
    finally:
        client.close()
    return True


def api_is_ready(address: str) -> bool:
    """The API itself asks Redis and the bucket."""
    try:
        return httpx.get(f"{address}/readyz", timeout=TIMEOUT_SECONDS, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def worker_is_ready(log: Log) -> bool:
    """The worker has no port: it says in its log, a JSON object a line, when the model is loaded and it consumes."""
    return WORKER_READY in log.text()
