"""The service benchmark's own arithmetic: what it makes of visits and records, what it judges, whom it starts."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.service import parse
from bench.service_clients import Caller, CallFailed, Visit
from bench.service_figures import loop_figures, report, saturated_figures, verdicts
from bench.service_product import environ_of
from worker.jobs.ledger import JobRecord
from worker.jobs.models import JobError, JobRequest, JobResult, Queue, Status, Timings

TIMINGS = {"queued_ms": 4.0, "batched_ms": 1.0, "generated_ms": 100.0, "decoded_ms": 20.0, "uploaded_ms": 10.0}


def a_visit(began: float, seconds: float = 0.2) -> Visit:
    """Accepted after 5 ms, ended 50 ms before the client had the audio, known 20 ms before that."""
    ended = datetime.fromtimestamp(began + seconds - 0.05, UTC).isoformat()
    job = {"status": "succeeded", "finished_at": ended, "result": {"timings": TIMINGS}}
    return Visit(began, began + 0.005, began + seconds - 0.02, began + seconds, 1, job)


def a_record(finished_at: float | None, error: JobError | None = None) -> JobRecord:
    """A job that ended at `finished_at` seconds: with an error where there is one, else with audio."""
    result = JobResult(
        uri="s3://bucket/audio",
        sha256="0" * 64,
        bytes=4,
        content_type="audio/wav",
        format="wav",
        duration_seconds=4.0,
        sample_rate=24_000,
        seed=0,
        timings=Timings(**TIMINGS),
        batch_size=32,
    )
    ended = None if finished_at is None else round(finished_at * 1e3)
    has_audio = ended is not None and error is None
    return JobRecord(
        id="job",
        status=Status.FAILED if error else Status.SUCCEEDED if has_audio else Status.RUNNING,
        queue=Queue.INTERACTIVE,
        owner="",
        request=JobRequest.parse({"text": "Hello."}),
        reference_key=None,
        estimate_seconds=4.0,
        created_at=0,
        started_at=0,
        finished_at=ended,
        attempts=1,
        cancel_requested=False,
        warnings=(),
        error=error,
        result=result if has_audio else None,
    )


def test_parts_of_a_visit_add_up_to_the_whole() -> None:
    parts = a_visit(1_000.0).parts_ms()
    expected = {"total": 200.0, "accepted": 5.0, "ended": 145.0, "told": 30.0, "fetched": 20.0}
    # Of the 150 ms up to the job's end the synthesizer took 120, the upload 10.
    assert parts == pytest.approx(expected | {"added": 30.0, "queue": 20.0}, abs=0.01)
    assert sum(parts[name] for name in ("accepted", "ended", "told", "fetched")) == pytest.approx(parts["total"])


def test_a_loop_counts_what_began_after_the_warm_up_and_ended_in_time() -> None:
    visits = [a_visit(99.0), a_visit(99.95), *(a_visit(100 + index / 10) for index in range(20)), a_visit(101.9, 0.5)]
    figures = loop_figures(visits, 4, 100.0, 102.0, 4.08)
    assert figures["clients"] == 4
    assert figures["requests"] == 21
    # Those up to 101.8 have ended by 102, and the one from 99.95 ended at 100.15.
    assert figures["requests_per_s"] == pytest.approx(20 / 2)
    assert figures["audio_s_per_s"] == pytest.approx(4.08 * 10)
    assert figures["p50_ms"] == pytest.approx(200.0)
    assert figures["p99_ms"] == pytest.approx(500.0)
    assert figures["declined_polls"] == 21
    assert figures["generated_ms"] == 100.0
    assert loop_figures([], 4, 100.0, 102.0, 4.08)["requests_per_s"] == 0


def test_saturated_rates_are_counted_from_one_end_of_a_window_to_another() -> None:
    """Windows of four end every second at 0.3: however the borders lie, that is four jobs a second."""
    records = [a_record(second + 0.3) for second in range(10) for _ in range(4)]
    for begin, end in ((2.0, 6.0), (2.2, 6.4), (2.4, 6.2)):
        figures = saturated_figures([*records, a_record(None)], begin, end, 4.08)
        assert figures["requests_per_s"] == pytest.approx(4.0)
        assert figures["audio_s_per_s"] == pytest.approx(4 * 4.08)
        assert figures["batch_size"] == 32
        assert figures["uploaded_ms"] == 10.0


def test_jobs_that_failed_do_not_count_and_are_told() -> None:
    broken = JobError(type="generation-failed", title="No usable audio came out", detail="silent")
    records = [a_record(1.0), *(a_record(float(second), broken if second == 3 else None) for second in range(2, 6))]
    figures = saturated_figures(records, 1.0, 5.0, 1.0)
    assert figures["jobs"] == 3
    assert figures["requests_per_s"] == pytest.approx(3 / 4)
    assert figures["failures"] == ["silent"]
    assert saturated_figures([a_record(9.0)], 1.0, 5.0, 1.0)["requests_per_s"] == 0


def results_of(synthesizer: str, clients: int, p95_ms: float, queue_p95_ms: float) -> dict[str, Any]:
    load: dict[str, Any] = {"cpu": {"worker": {"cores": 1.5, "busiest_thread": 0.5}}}
    loop = {"clients": clients, "p95_ms": p95_ms, "queue_p95_ms": queue_p95_ms} | load
    one = {"workers": 1, "requests_per_s": 80.0, "audio_s_per_s": 326.4} | load
    two = {"workers": 2, "requests_per_s": 150.0, "audio_s_per_s": 612.0} | load
    return {"settings": {"synthesizer": synthesizer}, "saturated": [one, two], "loops": [loop]}


def test_verdicts_are_the_targets_and_only_of_what_was_measured() -> None:
    results = results_of("engine", 40, 640.0, 50.0)
    bounds = {name: bound for name, _, _, bound, _ in verdicts(results)}
    assert bounds == {
        "40 in flight, p95 ms, by the rate": pytest.approx(1.25 * 40 / 80 * 1e3),
        "40 in flight, p95 ms": 700.0,
        "2 workers against one": pytest.approx(1.9),
    }
    assert [row[4] for row in verdicts(results)] == [False, True, False]
    results["text_to_wav"] = {"audio_s_per_s": 340.0}
    assert ("saturated, share of text to WAV", True) in [(row[0], row[4]) for row in verdicts(results)]
    assert [row[4] for row in verdicts(results_of("tone", 1, 70.0, 14.0)) if "idle" in row[0]] == [True]
    assert not [row for row in verdicts(results_of("engine", 1, 70.0, 99.0)) if "idle" in row[0]]


def test_report_shows_gaps_where_a_load_has_none_of_a_figure() -> None:
    results = results_of("engine", 40, 640.0, 50.0)
    results["saturated"][1]["cpu"] = {"worker-1": {"cores": 0.25, "busiest_thread": 0.125}}
    lines = report(results).splitlines()
    assert "| 2 saturated | – | 0.25 (0.12) |" in lines
    assert any(line.startswith("| 40 | – | – | 640.0 | – |") for line in lines)
    assert any(line.endswith("| NO |") for line in lines)


def test_settings_of_the_caller_pass_but_for_those_that_lead_elsewhere(tmp_path: Path) -> None:
    arguments = parse(["--out", str(tmp_path / "out.json"), "--device", "cpu", "--clients", "64,40"])
    assert (arguments.clients, arguments.api_threads) == ([64, 40], 128)
    given = {"PATH": "/bin", "OMNIVOICE_MAX_WAIT_MS": "9", "OMNIVOICE_REDIS_URL": "redis://elsewhere", "REDIS_URL": "x"}
    environ = environ_of(arguments, tmp_path, given)
    assert environ["OMNIVOICE_MAX_WAIT_MS"] == "9"
    assert environ["OMNIVOICE_MODEL"] == str(tmp_path)
    assert environ["OMNIVOICE_API_THREADS"] == "128"
    assert "OMNIVOICE_REDIS_URL" not in environ
    assert (environ["PATH"], environ["REDIS_URL"]) == ("/bin", "x")
    tone = parse(["--out", str(tmp_path / "out.json"), "--synthesizer", "tone", "--clients", ""])
    assert (tone.device, tone.clients, tone.api_threads) == ("cpu", [], 32)


class Closing(BaseHTTPRequestHandler):
    """Answers the first call on each connection, then hangs up without saying so, as a server does after a pause."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def test_a_caller_opens_a_connection_again_and_tells_an_error() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Closing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        caller = Caller()
        assert [caller.call("GET", f"{address}/job")[0] for _ in range(3)] == [200, 200, 200]
        with pytest.raises(CallFailed, match="GET /missing: 404"):
            caller.call("GET", f"{address}/missing")
        server.shutdown()
    with pytest.raises(CallFailed, match="GET /job"):
        caller.call("GET", f"{address}/job")
