"""The load test's own arithmetic, and its clients against a server that answers as the API does."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.load import parse
from bench.load_clients import TEXT_CHARS, Clients, body
from bench.load_figures import LEAST_LEAK_BYTES, fit, growth, latencies, report, verdicts
from bench.null_worker import NullSynthesizer
from bench.service_clients import CallFailed
from omnivoice.errors import RequestAborted
from omnivoice.request import SynthesisRequest


def test_a_line_and_its_error_are_those_of_least_squares() -> None:
    line = fit([0, 1, 2, 3], [1.0, 2.0, 4.0, 5.0])
    assert line.slope == pytest.approx(1.4)
    assert line.error == pytest.approx(0.141421, rel=1e-4)
    with pytest.raises(ValueError, match="2 points"):
        fit([0, 1], [0, 1])


def test_growth_is_that_of_the_second_half() -> None:
    """Memory that fills up and then stays is none; a pointer a job is seen beneath steps of pages."""
    jobs = list(range(1_000, 51_000, 1_000))
    saturated = [1e8 + 5e6 * min(1.0, number / 20_000) for number in jobs]
    assert growth(jobs, saturated) == (0.0, 0.0, 0.0)
    chance = random.Random(0)
    pages = [4096 * round((1e8 + chance.uniform(0, 40_000)) / 4096) for _ in jobs]
    assert growth(jobs, pages).upper_slope < LEAST_LEAK_BYTES
    leaking = [number * 12 + resident for number, resident in zip(jobs, pages, strict=True)]
    found = growth(jobs, leaking)
    assert found.upper_slope > LEAST_LEAK_BYTES
    assert found.slope == pytest.approx(12, abs=2)
    assert found.total == pytest.approx(12 * 24_000, abs=50_000)
    with pytest.raises(ValueError, match="too few"):
        growth(jobs[:9], pages[:9])


def test_latencies_are_milliseconds() -> None:
    figures = latencies([index / 1e3 for index in range(1, 101)])
    assert figures == {"p50_ms": 50.0, "p95_ms": 95.0, "p99_ms": 99.0, "max_ms": 100.0}


def test_verdicts_are_only_of_what_was_measured() -> None:
    results: dict[str, Any] = {"worker": {"jobs_per_s": 299.0}}
    assert verdicts(results) == [("worker: jobs/s", 299.0, ">=", 300.0, False)]
    grown = {"api": [3.0, 2.0, 75_400], "worker": [5.0, 2.0, 125_000]}
    results["memory"] = {"growth": grown, "resident": [{"jobs": 1_000, "api": 150_000_000, "worker": 140_000_000}]}
    results["redis"] = {"bytes_a_job": 2_400.0, "bytes_beyond_the_bound": 1_100.0, "keys_left": 0}
    assert [row[4] for row in verdicts(results)] == [False, True, False, True, True, True]
    lines = report(results).splitlines()
    assert "| api, B a job at most | 7.706 | <= 8 | yes |" in lines
    assert "| api | 3.0 ± 2.0 | 75 |" in lines
    assert "| 1000 | 150.00 | 140.00 |" in lines


def test_a_job_is_a_hundred_characters_and_none_is_like_another() -> None:
    bodies = [body(index) for index in range(3)]
    assert [len(str(job["text"])) for job in bodies] == [TEXT_CHARS] * 3
    assert len({str(job["text"]) for job in bodies}) == 3


class Api(BaseHTTPRequestHandler):
    """Accepts every job with an answer in two pieces, and notes what it was sent."""

    protocol_version = "HTTP/1.1"
    received: list[dict[str, Any]]
    status = 202

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"{}")
        self.wfile.flush()
        self.wfile.write(b"  ")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@contextmanager
def serving(status: int = 202) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    received: list[dict[str, Any]] = []
    handler = type("Handler", (Api,), {"received": received, "status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", received
        server.shutdown()


def test_a_closed_loop_sends_each_job_once_and_counts_the_answers() -> None:
    with serving() as (address, received):
        clients = Clients(address)
        answers = clients.closed_loop(4, jobs=50)
        clients.close()
    assert sorted(job["seed"] for job in received) == list(range(50))
    assert (answers.num_accepted, len(answers.seconds)) == (50, 50)


def test_an_open_loop_sends_at_its_rate_and_measures_from_the_moment_that_was_due() -> None:
    with serving() as (address, received):
        clients = Clients(address)
        answers = clients.open_loop(100.0, 0.5, random.Random(0))
        clients.close()
    assert len(received) == answers.num_accepted
    assert 25 <= answers.num_accepted <= 75
    assert min(answers.seconds) >= 0


def test_answers_that_are_no_202_are_told_apart() -> None:
    with serving(429) as (address, _):
        clients = Clients(address)
        answers = clients.closed_loop(1, jobs=2)
        clients.close()
    assert (answers.num_accepted, answers.statuses) == (0, {429: 2})


def test_an_api_that_is_gone_is_an_error() -> None:
    with serving() as (address, _):
        pass
    clients = Clients(address)
    with pytest.raises(CallFailed, match="cannot be reached"):
        clients.closed_loop(1, jobs=1)
    clients.close()


def test_the_null_synthesizer_ends_every_request_in_one_step() -> None:
    synthesizer = NullSynthesizer(0.5)
    for name in ("a", "b"):
        synthesizer.add_request(name, SynthesisRequest("Hello.", seed=7))
    synthesizer.abort("b")
    assert synthesizer.num_unfinished == 2
    ended = dict(synthesizer.step())
    assert synthesizer.num_unfinished == 0
    assert ended["a"].waveform is not None
    assert (len(ended["a"].waveform), ended["a"].seed, ended["a"].batch_size) == (12_000, 7, 2)
    assert isinstance(ended["b"].error, RequestAborted)


def test_a_part_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--out", "x.json", "--parts", "submit,wroker"])
    assert "'wroker' is none of submit, worker" in capsys.readouterr().err
