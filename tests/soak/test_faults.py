"""The schedule follows from the seed, and the proxy does to connections what it says."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from servers import wait_until

from tests.soak.clients import draw_submission
from tests.soak.faults import BACKEND_KINDS, PROCESS_KINDS, draw_schedule
from tests.soak.proxy import Proxy

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"
UPLOAD = b"PUT /key HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + 1_000 * b"x"


def test_seed_decides_jobs_and_faults() -> None:
    first, again, other = (draw_schedule(seed, 600, 5, 2, 3.0) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert [draw_submission(7, n) for n in range(50)] == [draw_submission(7, n) for n in range(50)]
    assert draw_submission(7, 3) != draw_submission(8, 3)


def test_every_kind_comes_and_the_pace_is_kept() -> None:
    schedule = draw_schedule(3, 1_000, 5, 2, 3.0)
    assert {fault.kind for fault in schedule} == {*PROCESS_KINDS, *BACKEND_KINDS}
    assert 170 <= len(schedule) <= 230
    assert {fault.worker for fault in schedule} == {0, 1}
    assert all(fault.seconds > 3.0 for fault in schedule if fault.kind == "worker stall"), "beyond the lease"


def test_jobs_are_of_every_kind() -> None:
    jobs = [draw_submission(5, index) for index in range(1_000)]
    assert Counter(job.queue for job in jobs).keys() == {"interactive", "bulk"}
    for kind in ("clip", "expires_in", "cancel_after", "key"):
        assert 60 <= sum(getattr(job, kind) is not None for job in jobs) <= 140, kind


# -- the proxy before a real Redis -------------------------------------------------------------------------------------


@pytest.fixture
def proxied(redis_url: str) -> Iterator[tuple[Proxy, Redis]]:
    proxy = Proxy(int(redis_url.rpartition(":")[2].partition("/")[0]))
    with Redis(port=proxy.port, socket_timeout=0.5, retry=Retry(NoBackoff(), 0)) as redis:
        yield proxy, redis
    proxy.close()


def test_lost_answer_leaves_the_effect(proxied: tuple[Proxy, Redis]) -> None:
    proxy, redis = proxied
    redis.delete("soak-counter")
    proxy.lose_answers(1)
    with pytest.raises(RedisError):
        redis.incr("soak-counter")
    assert redis.get("soak-counter") == b"1"
    assert proxy.num_struck == 1


def test_reset_breaks_what_is_connected_and_nothing_more(proxied: tuple[Proxy, Redis]) -> None:
    proxy, redis = proxied
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
    assert proxy.num_struck == 1
    assert redis.ping(), "a new connection works"


def test_half_open_connection_is_silent_not_closed(proxied: tuple[Proxy, Redis]) -> None:
    proxy, redis = proxied
    assert redis.ping()
    proxy.forget_all()
    wait_until(lambda: proxy.num_struck == 1, what="the connection to be forgotten")
    began_at = time.monotonic()
    with pytest.raises(RedisError):
        redis.ping()
    assert time.monotonic() - began_at >= 0.5, "it had to run into its own time limit"
    assert redis.ping(), "a new connection works"


# -- the proxy before a server that speaks as much HTTP as is needed ---------------------------------------------------


@pytest.fixture
def http() -> Iterator[tuple[Proxy, list[bytes]]]:
    """A proxy, and what the server behind it has received of each connection."""
    received: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            index = len(received)
            received.append(b"")
            with connection:
                try:
                    while data := connection.recv(65_536):
                        received[index] += data
                        if b"GET" in received[index] or received[index].count(b"x") >= 1_000:
                            connection.sendall(ANSWER)
                except OSError:
                    pass

    threading.Thread(target=serve, daemon=True).start()
    proxy = Proxy(listener.getsockname()[1])
    yield proxy, received
    proxy.close()
    listener.close()


def talk(proxy: Proxy, request: bytes) -> bytes:
    """All that comes back until the connection ends or is silent for half a second."""
    answer = b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.5) as connection:
        connection.sendall(request)
        try:
            while data := connection.recv(65_536):
                answer += data
        except TimeoutError:
            pass
        except ConnectionResetError:
            answer += b" RESET"
    return answer


def test_honest_proxy_changes_nothing(http: tuple[Proxy, list[bytes]]) -> None:
    proxy, received = http
    assert talk(proxy, UPLOAD) == ANSWER
    assert received == [UPLOAD]


def test_every_second_request_is_refused(http: tuple[Proxy, list[bytes]]) -> None:
    proxy, received = http
    proxy.answer_with(503, every=2)
    assert talk(proxy, UPLOAD) == ANSWER
    refused = talk(proxy, UPLOAD)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"<Code>SlowDown</Code>" in refused
    assert received[1:] == [b""], "the server knows nothing of it"
    proxy.behave()
    assert talk(proxy, UPLOAD) == ANSWER


def test_body_breaks_on_its_way_in(http: tuple[Proxy, list[bytes]]) -> None:
    proxy, received = http
    proxy.break_bodies(every=1)
    assert talk(proxy, UPLOAD) == b" RESET"
    wait_until(lambda: received and received[0], what="what came through")
    assert UPLOAD.startswith(received[0])
    assert 0 < received[0].count(b"x") < 1_000


def test_body_breaks_on_its_way_out(http: tuple[Proxy, list[bytes]]) -> None:
    proxy, _ = http
    proxy.break_bodies(every=1)
    answer = talk(proxy, b"GET /key HTTP/1.1\r\n\r\n")
    assert answer.endswith(b" RESET")
    assert ANSWER not in answer


def test_slow_answers_come_whole(http: tuple[Proxy, list[bytes]]) -> None:
    proxy, _ = http
    proxy.slow_down(every=1, seconds=0.4)
    began_at = time.monotonic()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as connection:
        connection.sendall(UPLOAD)
        assert connection.recv(65_536) == ANSWER
    assert time.monotonic() - began_at >= 0.8, "both ways"
