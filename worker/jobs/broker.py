"""Celery as the messenger: a message carries a job's id, the ledger everything else.

kombu takes a message off its list and notes it as unacknowledged in two steps, so a worker that dies in between loses
it. That is why nothing here is relied on: the ledger's reconciler publishes again whatever is overdue.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from kombu import Exchange
from kombu import Queue as BrokerQueue
from kombu.exceptions import KombuError, OperationalError
from kombu.transport import redis
from kombu.utils.json import dumps
from redis.exceptions import RedisError

from worker.jobs import names
from worker.jobs.connection import CONNECT_TIMEOUT_SECONDS, HEALTH_CHECK_SECONDS, SOCKET_TIMEOUT_SECONDS
from worker.jobs.models import Queue
from worker.jobs.names import TASK_NAME
from worker.jobs.settings import Settings

__all__ = ["TASK_NAME", "make_celery", "publish"]

VISIBILITY_TIMEOUT_SECONDS = 3600
"""After this kombu gives an unacknowledged message to another worker. Longer than any batch: the ledger's leases are
what notices a dead worker, and a message that comes back while its job still runs is only noise."""

_PUBLISH_RETRY = {"max_retries": 2, "interval_start": 0.0, "interval_step": 0.2, "interval_max": 0.5}

_REFUSED = (KombuError, OperationalError, RedisError, OSError)

_FIRST_HEADER = "omnivoice_first"

logger = logging.getLogger(__name__)


class Channel(redis.Channel):  # type: ignore[misc]  # kombu has no types
    """kombu's, which can also put a message where the next one is taken from: its lists are read from the right."""

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if not message["headers"].get(_FIRST_HEADER):
            super()._put(queue, message, **kwargs)
            return
        with self.conn_or_acquire() as client:
            client.rpush(queue, dumps(message))


class Transport(redis.Transport):  # type: ignore[misc]
    Channel = Channel


def make_celery(settings: Settings) -> Celery:
    """The Celery application, for publishing (API) and for consuming (worker). Connects to nothing yet.

    It keeps no results: a job's state lives in the ledger.
    """
    app = Celery("omnivoice", broker=settings.redis_url, set_as_current=False)
    app.conf.update(
        broker_transport=Transport,
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
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "global_keyprefix": names.broker_prefix(settings.redis_prefix),
            "visibility_timeout": VISIBILITY_TIMEOUT_SECONDS,
            # Rotates after each message, so neither queue starves the other; a fixed order would starve bulk.
            "queue_order_strategy": "round_robin",
            # kombu's default is no timeout at all: a half-open connection then blocks the consumer and SIGTERM too.
            "socket_timeout": SOCKET_TIMEOUT_SECONDS,
            "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": HEALTH_CHECK_SECONDS,
        },
    )
    return app


def publish(app: Celery, job_id: str, queue: Queue, *, first: bool = False) -> bool:
    """Send the message for a job that the ledger already holds; False (and a warning) where the broker refused.

    `first` is for a job that has waited already: it does not go behind the backlog. False is no failure of the job: it
    is due in the ledger, and a reconciler will publish it.
    """
    headers = {_FIRST_HEADER: True} if first else {}
    try:
        try:
            _send(app, job_id, queue, headers=headers)
        except _REFUSED:
            raise
        except Exception as error:  # noqa: BLE001  AttributeError mostly, but nothing says which
            # When a connection breaks while kombu declares a queue, or while two threads publish over it (its pool may
            # give it to both after an outage), kombu stumbles over the channel that it has closed itself.
            logger.info("publishing broke and is repeated on a connection of its own: %r", error)
            with app.connection_for_write() as connection:
                _send(app, job_id, queue, headers=headers, connection=connection)
    except Exception as error:  # noqa: BLE001  whatever it was, the job is accepted
        logger.warning("job %s is accepted but was not announced, the reconciler will: %s", job_id, error)
        return False
    return True


def _send(app: Celery, job_id: str, queue: Queue, **options: Any) -> None:
    # Celery would put the arguments into the headers once more, as text: argsrepr and kwargsrepr say not to.
    options |= {"argsrepr": "", "kwargsrepr": "", "ignore_result": True}
    app.send_task(TASK_NAME, args=(job_id,), queue=queue.value, **options)


def _broker_queue(queue: Queue) -> BrokerQueue:
    return BrokerQueue(queue.value, Exchange(queue.value, type="direct"), routing_key=queue.value)
