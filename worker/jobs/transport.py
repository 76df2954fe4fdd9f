"""kombu's Redis transport, made to survive messages that are not messages, and to put some before all others.

kombu decodes an item of its list without a guard: one item that is not its JSON raises out of Celery's event loop, and
the worker ends ("Unrecoverable error"). Whoever can reach Redis could so end all workers, one item each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis
from kombu.utils.json import dumps

logger = logging.getLogger(__name__)

FIRST_HEADER = "omnivoice_first"
"""A message with it is the next that is taken from its queue."""
MALFORMED = (ValueError, TypeError, LookupError, AttributeError)
"""What decoding raises. Errors of the connection are none of these: they must reach Celery, which reconnects."""


class QoS(redis.QoS):  # type: ignore[misc]  # kombu has no types
    def ack(self, delivery_tag: str) -> None:
        try:
            super().ack(delivery_tag)
        except Exception:
            # Celery logs it and goes on, and a message holds a place of the prefetch until it is acknowledged. With all
            # places held nothing is read, nor an outage noticed that is over by then: the worker would idle for ever.
            self._quick_ack(delivery_tag)
            raise


class Channel(redis.Channel):  # type: ignore[misc]
    QoS = QoS

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if not message["headers"].get(FIRST_HEADER):
            super()._put(queue, message, **kwargs)
            return
        with self.conn_or_acquire() as client:
            client.rpush(queue, dumps(message))  # kombu reads its lists from the right

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except MALFORMED as error:
            # It left the list when it was read, so it is gone; an error's text may quote it and is not logged.
            logger.warning("an item of the queue is no message and is dropped: %s", type(error).__name__)
            return True

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **kwargs: Any
    ) -> Any:
        def tolerant_callback(message: Any) -> Any:
            try:
                return callback(message)
            except MALFORMED as error:
                # Noted as unacknowledged by now: unless it is rejected, it holds a place of the prefetch for ever.
                logger.warning("a message cannot be read and is rejected: %s", type(error).__name__)
                return message.reject_log_error(logger, self.connection_errors)

        return super().basic_consume(queue, no_ack, tolerant_callback, consumer_tag, **kwargs)


class SentinelChannel(Channel, redis.SentinelChannel):  # type: ignore[misc]
    """What `Channel` does, over what kombu's does to find the primary."""


class Transport(redis.Transport):  # type: ignore[misc]
    Channel = Channel


class SentinelTransport(redis.SentinelTransport):  # type: ignore[misc]
    Channel = SentinelChannel


# By the names of the URLs' schemes: given as a class, kombu would forget what the scheme says (TLS, a Unix socket).
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport")
TRANSPORT_ALIASES["sentinel"] = f"{__name__}:SentinelTransport"
