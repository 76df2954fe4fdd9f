"""Clients that cost little: one thread, connections that are kept open, requests made beforehand.

The clients run on the cores that they measure, so they parse nothing of an answer but its status and its length.
"""

from __future__ import annotations

import heapq
import json
import random
import re
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bench.service_clients import CallFailed

ANSWER_SECONDS = 30.0
"""A client that has waited this long for one answer gives up."""
ACCEPTED = 202
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_WORDS = "a slow river carries small boats past quiet farms while the evening light fades over distant hills today"
TEXT_CHARS = 100


def body(index: int) -> dict[str, object]:
    """A job of 100 characters; every one has a text and a seed of its own."""
    number = f"{index:07d} "
    return {"text": number + _WORDS[: TEXT_CHARS - len(number)], "language": "en", "seed": index}


@dataclass(slots=True)
class Answers:
    """Seconds from the moment at which each request was due to its whole answer; how many were refused."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    took_seconds: float = 0.0

    @property
    def num_accepted(self) -> int:
        return self.statuses.get(ACCEPTED, 0)

    @property
    def rate(self) -> float:
        """Accepted jobs a second."""
        return self.num_accepted / self.took_seconds


class _Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due: float | None = None
        self._received = b""

    def send(self, request: bytes, due: float) -> None:
        self.due = due
        self._received = b""
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """The status once the answer is whole. Raises `CallFailed` where the server ends the connection before."""
        try:
            data = self.socket.recv(65_536)
        except OSError as error:
            raise CallFailed(f"the API broke a connection: {error}") from None
        if not data:
            raise CallFailed("the API closed a connection")
        self._received += data
        head, end, content = self._received.partition(b"\r\n\r\n")
        if not end:
            return None
        length = _LENGTH.search(head)
        if length is None:
            raise CallFailed(f"an answer without a length: {head[:80]!r}")
        return int(head[9:12]) if len(content) >= int(length[1]) else None


class Clients:
    """Submits jobs to one API; `first` is the number of the first job."""

    def __init__(self, address: str, first: int = 0) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._host = parts.netloc
        self._next = first
        self._selector = selectors.DefaultSelector()
        self._idle: list[_Connection] = []

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.socket.close()
        self._selector.close()

    def closed_loop(self, num_clients: int, seconds: float = float("inf"), jobs: int | None = None) -> Answers:
        """Each of the clients submits as soon as it is answered, for so long or until so many jobs were sent."""
        answers = Answers()
        began = time.monotonic()
        requests = self._requests(jobs)
        self._answered(answers, 0.0, is_late=False)  # forgets the connections that the server has ended since
        busy = 0
        for _ in range(num_clients):
            busy += self._submit(requests, time.monotonic())
        while busy:
            for connection in self._answered(answers):
                self._idle.append(connection)
                busy -= 1
                if time.monotonic() - began < seconds:
                    busy += self._submit(requests, time.monotonic())
        answers.took_seconds = time.monotonic() - began
        return answers

    def open_loop(self, rate: float, seconds: float, chance: random.Random) -> Answers:
        """Poisson arrivals, `rate` a second: a request that finds every connection busy opens another."""
        answers = Answers()
        began = time.monotonic()
        moments = list(_arrivals(rate, seconds, chance))
        requests = self._requests(len(moments))
        due = [began + moment for moment in moments]
        heapq.heapify(due)
        busy = 0
        while due or busy:
            while due and due[0] <= time.monotonic():
                busy += self._submit(requests, heapq.heappop(due))
            patience = max(0.0, due[0] - time.monotonic()) if due else ANSWER_SECONDS
            for connection in self._answered(answers, patience, is_late=not due):
                self._idle.append(connection)
                busy -= 1
        answers.took_seconds = time.monotonic() - began
        return answers

    def _submit(self, requests: Iterator[bytes], due: float) -> bool:
        request = next(requests, None)
        if request is None:
            return False
        try:
            connection = self._idle.pop() if self._idle else self._connect()
            connection.send(request, due)
        except OSError as error:
            raise CallFailed(f"the API cannot be reached: {error}") from None
        return True

    def _connect(self) -> _Connection:
        connection = _Connection(self._address)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        return connection

    def _answered(
        self, answers: Answers, patience: float = ANSWER_SECONDS, is_late: bool = True
    ) -> Sequence[_Connection]:
        """Connections whose answer is there, after at most `patience` seconds; where that `is_late`, `CallFailed`."""
        ready = self._selector.select(patience)
        if not ready and is_late:
            raise CallFailed(f"no answer for {patience:.0f} s")
        done = []
        for key, _ in ready:
            connection: _Connection = key.data
            if connection.due is None:  # idle for so long that the server has ended it
                self._selector.unregister(connection.socket)
                connection.socket.close()
                self._idle.remove(connection)
            elif (status := connection.receive()) is not None:
                answers.seconds.append(time.monotonic() - connection.due)
                answers.statuses[status] = answers.statuses.get(status, 0) + 1
                connection.due = None
                done.append(connection)
        return done

    def _requests(self, jobs: int | None) -> Iterator[bytes]:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\nContent-Length: "
        while jobs is None or jobs > 0:
            content = json.dumps(body(self._next)).encode()
            self._next += 1
            jobs = None if jobs is None else jobs - 1
            yield b"%s%d\r\n\r\n%s" % (head.encode(), len(content), content)


def _arrivals(rate: float, seconds: float, chance: random.Random) -> Iterator[float]:
    moment = chance.expovariate(rate)
    while moment < seconds:
        yield moment
        moment += chance.expovariate(rate)
