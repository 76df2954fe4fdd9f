"""Celery as the messenger: a message carries a job's id, the ledger everything else.

kombu takes a message off its list and notes it as unacknowledged in two steps, so a worker that dies in between loses
it. That is why nothing here is relied on: the ledger's reconciler publishes again whatever is overdue.
"""

from __future__ import annotations

import json
import logging
import ssl
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from celery import Celery
from kombu import Exchange
from kombu import Queue as BrokerQueue
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from worker.jobs import names
from worker.jobs.connection import over_a_network, sentinel_options
from worker.jobs.models import Queue
from worker.jobs.names import TASK_NAME
from worker.jobs.sentinel import SentinelUrl
from worker.jobs.settings import Settings
from worker.jobs.transport import FIRST_HEADER

__all__ = ["TASK_NAME", "make_celery", "message_template", "publish"]

VISIBILITY_TIMEOUT_SECONDS = 3600
"""After this kombu gives an unacknowledged message to another worker. Longer than any batch: the ledger's leases are
what notices a dead worker, and a message that comes back while its job still runs is only noise."""

_PUBLISH_RETRY = {"max_retries": 2, "interval_start": 0.0, "interval_step": 0.2, "interval_max": 0.5}

_REFUSED = (KombuError, OperationalError, RedisError, OSError)

logger = logging.getLogger(__name__)


def make_celery(settings: Settings) -> Celery:
    """The Celery application, for publishing (API) and for consuming (worker). Connects to nothing yet.

    It keeps no results: a job's state lives in the ledger.
    """
    sentinel = SentinelUrl.parse(settings.redis_url)
    app = Celery("omnivoice", broker=_broker_url(settings.redis_url), set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        result_backend=None,
        task_ignore_result=True,
        task_queues=[_broker_queue(queue) for queue in Queue],
        task_default_queue=Queue.INTERACTIVE.value,
        task_create_missing_queues=False,
        task_acks_late=True,
        task_publish_retry_policy=_PUBLISH_RETRY,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        # kombu's own default trusts any certificate; `ssl_*` parameters of the URL (as redis-py knows them) go before.
        broker_use_ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED} if settings.redis_url.startswith("rediss://") else False,
        # An answer that says no (a full disk, a replica that was the primary) is an outage, not the end of the worker.
        broker_channel_error_retry=True,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "global_keyprefix": names.broker_prefix(settings.redis_prefix),
            "visibility_timeout": VISIBILITY_TIMEOUT_SECONDS,
            # Rotates after each message, so neither queue starves the other; a fixed order would starve bulk.
            "queue_order_strategy": "round_robin",
            # kombu's default is no timeout at all: a half-open connection then blocks the consumer and SIGTERM too.
            **over_a_network(),
            **({"master_name": sentinel.service, "sentinel_kwargs": sentinel_options()} if sentinel else {}),
        },
    )
    return app


def publish(app: Celery, job_id: str, queue: Queue, *, first: bool = False) -> bool:
    """Send the message for a job that the ledger already holds; False (and a warning) where the broker refused.

    `first` is for a job that has waited already: it does not go behind the backlog. False is no failure of the job: it
    is due in the ledger, and a reconciler will publish it.
    """
    headers = {FIRST_HEADER: True} if first else {}
    try:
        try:
            _send(app, job_id, queue.value, headers=headers)
        except _REFUSED:
            raise
        except Exception as error:  # noqa: BLE001  AttributeError mostly, but nothing says which
            # When a connection breaks while kombu declares a queue, or while two threads publish over it (its pool may
            # give it to both after an outage), kombu stumbles over the channel that it has closed itself.
            logger.info("publishing broke and is repeated on a connection of its own: %r", error)
            with app.connection_for_write() as connection:
                _send(app, job_id, queue.value, headers=headers, connection=connection)
    except Exception as error:  # noqa: BLE001  whatever it was, the job is accepted
        logger.warning("job %s is accepted but was not announced, the reconciler will: %s", job_id, error)
        return False
    return True


@cache
def message_template() -> str:
    """A message as Celery and kombu write it into the broker's list, for the ledger to publish ids on the server.

    JSON with the words JOB_ID, MESSAGE_ID (which no other message has) and QUEUE in it.
    """
    app = Celery("omnivoice", broker="memory://", set_as_current=False)
    app.conf.update(
        task_queues=[BrokerQueue("QUEUE", Exchange("QUEUE", type="direct"), routing_key="QUEUE")],
        broker_transport_options={"body_encoding": "utf-8"},  # its default would hide the id
    )
    with app, app.connection_for_write() as connection, connection.channel() as channel:
        _send(app, "JOB_ID", "QUEUE", task_id="MESSAGE_ID", connection=connection)
        message = channel._get("QUEUE")
    message["properties"]["delivery_tag"] = "MESSAGE_ID"
    return json.dumps(message)


def _send(app: Celery, job_id: str, queue: str, **options: Any) -> None:
    # Celery would put the arguments into the headers once more, as text: argsrepr and kwargsrepr say not to.
    options |= {"argsrepr": "", "kwargsrepr": "", "ignore_result": True}
    app.send_task(TASK_NAME, args=(job_id,), queue=queue, **options)


def _broker_url(redis_url: str) -> str:
    """The same server as kombu writes it: for a Unix socket redis-py has the password and the database in the query."""
    if sentinel := SentinelUrl.parse(redis_url):
        return sentinel.as_kombu_writes_it()
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    query = dict(parse_qsl(parts.query))
    user, password = parts.username or query.get("username", ""), parts.password or query.get("password", "")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    return f"redis+socket://{login}{parts.path}?virtual_host={query.get('db', '0')}"


def _broker_queue(queue: Queue) -> BrokerQueue:
    return BrokerQueue(queue.value, Exchange(queue.value, type="direct"), routing_key=queue.value)
