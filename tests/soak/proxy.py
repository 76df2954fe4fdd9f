"""A TCP proxy in front of a server that does to connections what networks and busy servers do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16
SLOW_SECONDS = 1.5
LINGER_ZERO = struct.pack("ii", 1, 0)
METHODS = (b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")

ERROR_CODES = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}


@dataclass(eq=False)
class Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    is_forgotten: bool = False
    is_doomed: bool = False
    is_slow: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def reset(self) -> None:
        """Break it with RST, as a host that went away does when it is back."""
        for end in (self.client, self.server):
            connection = end.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
            end.transport.abort()


class Proxy:
    """Relays connections from `port` to `target` on loopback; every method may be called from any thread.

    The misbehaviours that need to see requests (`answer_with`, `slow_down`, `break_bodies`) know just enough HTTP/1.1
    for a client that does not pipeline; they strike every `every`-th request until `behave`.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._links: set[Link] = set()
        self._mode = ""
        self._slow_seconds = SLOW_SECONDS
        self._every = 1
        self._num_requests = 0
        self._answers_to_lose = 0
        self._words_to_lose: bytes | None = None
        self.num_struck = 0
        """Requests, answers and connections that were harmed so far."""
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=f"proxy-{target}", daemon=True)
        self._thread.start()

    def reset_all(self) -> None:
        self._loop.call_soon_threadsafe(self._reset_all)

    def forget_all(self) -> None:
        """All connections of now become half-open: nothing arrives any more, and nobody is told."""
        self._loop.call_soon_threadsafe(self._forget_all)

    def forget_at(self, words: bytes) -> None:
        """A connection becomes half-open where it sends a piece with these words, which do not arrive either: whoever
        sent them stays between two steps, until it loses patience."""
        self._loop.call_soon_threadsafe(setattr, self, "_words_to_lose", words)

    def lose_answers(self, count: int) -> None:
        """The next `count` answers do not arrive: each one's connection breaks in their place."""
        self._loop.call_soon_threadsafe(setattr, self, "_answers_to_lose", count)

    def answer_with(self, status: int, every: int) -> None:
        """HTTP: answer requests with an error of S3's instead of passing them on."""
        self._misbehave(f"status {status}", every)

    def slow_down(self, every: int, seconds: float = SLOW_SECONDS) -> None:
        """HTTP: hold every piece of a request and of its answer for a while."""
        self._loop.call_soon_threadsafe(setattr, self, "_slow_seconds", seconds)
        self._misbehave("slow", every)

    def break_bodies(self, every: int) -> None:
        """HTTP: reset the connection in the middle of the body that is sent, or of the answer's."""
        self._misbehave("break", every)

    def behave(self) -> None:
        self._misbehave("", 1)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _misbehave(self, mode: str, every: int) -> None:
        def change() -> None:
            self._mode, self._every = mode, every

        self._loop.call_soon_threadsafe(change)

    # -- on the proxy's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connect, sock=self._listener))
        self._loop.run_forever()
        server.close()
        self._reset_all()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _reset_all(self) -> None:
        self.num_struck += len(self._links)
        for link in list(self._links):
            link.reset()

    def _forget_all(self) -> None:
        self.num_struck += len(self._links)
        for link in self._links:
            link.is_forgotten = True

    async def _connect(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the server is down: the client sees its connection close at once
            to_client.transport.abort()
            return
        link = Link(to_client, to_server)
        self._links.add(link)
        try:
            await asyncio.gather(self._carry_requests(link, from_client), self._carry_answers(link, from_server))
        except asyncio.CancelledError:
            pass  # the proxy closes; asyncio's streams print the traceback of a connection that ends so
        finally:
            self._links.discard(link)
            for end in (to_client, to_server):
                end.close()

    async def _carry_requests(self, link: Link, source: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if self._words_to_lose is not None and self._words_to_lose in data:
                    link.is_forgotten = True
                    self.num_struck += 1
                if link.is_forgotten:
                    continue
                if data.startswith(METHODS) and not await self._admit(link, data):
                    return
                if link.is_doomed and (body := _body(data)):
                    await _send(link.server, data[: len(data) - len(body) // 2 - 1])
                    link.reset()
                    return
                if link.is_slow:
                    await asyncio.sleep(self._slow_seconds)
                await _send(link.server, data)
        if not link.is_forgotten:  # a forgotten one's server learns nothing of its client's end
            _end(link.server)

    async def _admit(self, link: Link, data: bytes) -> bool:
        """Decide about a request that begins; False where it was answered here."""
        link.is_slow = link.is_doomed = False
        if not self._mode:
            return True
        self._num_requests += 1
        if self._num_requests % self._every:
            return True
        self.num_struck += 1
        link.is_slow = self._mode == "slow"
        link.is_doomed = self._mode == "break"
        if self._mode.startswith("status "):
            await _refuse(link, int(self._mode.removeprefix("status ")), has_body=not data.startswith(b"HEAD "))
            return False
        return True

    async def _carry_answers(self, link: Link, source: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if link.is_forgotten:
                    continue
                if self._answers_to_lose > 0:
                    self._answers_to_lose -= 1
                    self.num_struck += 1
                    link.reset()
                    return
                if link.is_doomed and not data.startswith(b"HTTP/1.1 100"):
                    await _send(link.client, data[: len(data) // 2])
                    link.reset()
                    return
                if link.is_slow:
                    await asyncio.sleep(self._slow_seconds)
                await _send(link.client, data)
        if not link.is_forgotten:
            _end(link.client)


async def _send(sink: asyncio.StreamWriter, data: bytes) -> None:
    sink.write(data)
    await sink.drain()


def _end(sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        sink.close()


def _body(data: bytes) -> bytes:
    """The part of a piece of a request that is body: all of it, unless the request begins in it."""
    return data.partition(b"\r\n\r\n")[2] if data.startswith(METHODS) else data


async def _refuse(link: Link, status: int, has_body: bool) -> None:
    body = f"<?xml version='1.0'?><Error><Code>{ERROR_CODES[status]}</Code><Message>soak</Message></Error>".encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    await _send(link.client, head.encode() + b"Connection: close\r\n\r\n" + (body if has_body else b""))
    # Not at once: what the client still sends would be answered with RST, which can overtake the answer.
    await asyncio.sleep(0.2)
    for end in (link.client, link.server):
        _end(end)


@contextlib.contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    """A proxy in front of the server at `url`, until the block ends."""
    port = urlsplit(url).port
    assert port is not None
    with contextlib.closing(Proxy(port)) as proxy:
        yield proxy
