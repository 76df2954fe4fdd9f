"""kombu's Redis transport, made to survive messages that are not messages, and to put some before all others.

kombu decodes an item of its list without a guard: one item that is not its JSON raises out of Celery's event loop, and
the worker ends ("Unrecoverable error"). Whoever can reach Redis could so end all workers, one item each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis, virtual
from kombu.utils.json import dumps

logger = logging.getLogger(__name__)

FIRST_HEADER = "omnivoice_first"
"""A message with it is the next that is taken from its queue."""
NOTE_SECONDS = 0.01
"""For so long what there is to note of messages is gathered."""
MALFORMED = (ValueError, TypeError, LookupError, AttributeError)
"""What decoding raises. Errors of the connection are none of these: they must reach Celery, which reconnects."""


class QoS(redis.QoS):  # type: ignore[misc]  # kombu has no types
    """Notes in Redis which messages are taken and which are done, as kombu's does, but many in one round trip.

    A worker that dies with notes unwritten leaves what kombu's leaves: a message that is in no list, which the ledger's
    reconciler makes good, or one that comes back an hour after its job has ended.
    """

    _notes: Any = None  # a pipeline
    _is_due = False

    def append(self, message: Any, delivery_tag: str) -> None:
        origin = message.delivery_info
        note = dumps([message._raw, origin["exchange"], origin["routing_key"]])
        notes = self._open_notes()
        notes.zadd(self.unacked_index_key, {delivery_tag: time.time()}).hset(self.unacked_key, delivery_tag, note)
        virtual.QoS.append(self, message, delivery_tag)
        self._write_soon()

    def ack(self, delivery_tag: str) -> None:
        # Its place among the prefetched is free whatever becomes of the note: with all places held nothing is read, nor
        # an outage noticed that is over by then, and the worker would idle for ever.
        virtual.QoS.ack(self, delivery_tag)
        self._remove_from_indices(delivery_tag, self._open_notes())
        self._write_soon()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self.write_notes()  # what it writes itself must not come before them
        super().reject(delivery_tag, requeue)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """At the end of the channel."""
        try:
            self.write_notes()
        except Exception as error:  # noqa: BLE001  the channel may end since Redis is away, or says no
            logger.info("the last messages are not noted: %s", type(error).__name__)
        super().restore_unacked_once(stderr)

    def write_notes(self) -> None:
        notes, self._notes, self._is_due = self._notes, None, False
        if notes is not None:
            notes.execute()

    def _open_notes(self) -> Any:
        if self._notes is None:
            with self.pipe_or_acquire() as self._notes:
                pass
        return self._notes

    def _write_soon(self) -> None:
        transport = self.channel.connection
        if transport is None or transport.loop is None:  # closed, or used without a loop
            self.write_notes()
        elif not self._is_due:
            self._is_due = True
            transport.loop.call_later(NOTE_SECONDS, self.write_notes)


class Channel(redis.Channel):  # type: ignore[misc]
    QoS = QoS
    _kept_client: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        """kombu makes one for each command, which costs more than the command: the table of answers is built anew."""
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._kept_client is None or self._kept_client.connection_pool is not self.pool:
            self._kept_client = super()._create_client()
        return self._kept_client

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


class _Looped:
    """Knows the event loop that it is used in, where there is one: notes are written from there."""

    loop: Any = None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]
        self.loop = loop


class Transport(_Looped, redis.Transport):  # type: ignore[misc]
    Channel = Channel


class SentinelTransport(_Looped, redis.SentinelTransport):  # type: ignore[misc]
    Channel = SentinelChannel


# By the names of the URLs' schemes: given as a class, kombu would forget what the scheme says (TLS, a Unix socket).
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport")
TRANSPORT_ALIASES["sentinel"] = f"{__name__}:SentinelTransport"
