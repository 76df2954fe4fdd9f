"""From what was measured of the product to what is read: rates, latencies, processor time, verdicts, tables."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from bench.plot import markdown, percentile
from bench.service_clients import PARTS, Visit
from worker.jobs.ledger import JobRecord

TIMINGS = ("queued_ms", "batched_ms", "generated_ms", "decoded_ms", "uploaded_ms")
THIS_PROCESS = "this benchmark"


def loop_figures(
    visits: Sequence[Visit], clients: int, begin: float, end: float, seconds_each: float
) -> dict[str, Any]:
    """Milliseconds of the jobs that began from `begin` on, and rates of those that ended until `end`."""
    parts = [visit.parts_ms() for visit in visits if visit.began >= begin]
    num_ended = sum(begin <= visit.fetched <= end for visit in visits)
    figures: dict[str, Any] = {"clients": clients, "requests": len(parts), "requests_per_s": num_ended / (end - begin)}
    figures["audio_s_per_s"] = figures["requests_per_s"] * seconds_each
    if parts:
        totals = [part["total"] for part in parts]
        figures["mean_ms"] = statistics.fmean(totals)
        figures |= {f"p{percent}_ms": percentile(totals, percent) for percent in (50, 95, 99)}
        for name in (*PARTS, "queue", "added"):
            samples = [part[name] for part in parts]
            figures |= {f"{name}_p{percent}_ms": percentile(samples, percent) for percent in (50, 95)}
    counted = [visit for visit in visits if visit.began >= begin]
    figures["declined_polls"] = sum(visit.num_declined for visit in counted)
    return figures | stages([visit.job["result"]["timings"] for visit in counted])


def stages(timings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians of the stages in the jobs' records, milliseconds."""
    return {name: statistics.median(each[name] for each in timings) for name in TIMINGS} if timings else {}


def saturated_figures(records: Sequence[JobRecord], begin: float, end: float, seconds_each: float) -> dict[str, Any]:
    """Rates of the jobs that ended after `begin` and until `end`; each counts as the `seconds_each` that it generated.

    Jobs end a window at a time. So the time is counted from one end of a job to another: from the last one up to
    `begin`, where there is one, to the last one up to `end`.
    """
    moments = sorted(record.finished_at / 1e3 for record in records if record.finished_at is not None)
    first = max((moment for moment in moments if moment <= begin), default=begin)
    last = max((moment for moment in moments if moment <= end), default=begin)
    ended = [
        record for record in records if record.finished_at is not None and first < record.finished_at / 1e3 <= last
    ]
    results = [record.result for record in ended if record.result is not None]
    rate = len(results) / (last - first) if results else 0.0
    figures: dict[str, Any] = {"jobs": len(results), "requests_per_s": rate, "audio_s_per_s": rate * seconds_each}
    figures["failures"] = [record.error.detail for record in ended if record.error is not None]
    if results:
        figures["file_seconds"] = statistics.fmean(result.duration_seconds for result in results)
        figures["batch_size"] = statistics.fmean(result.batch_size for result in results)
    return figures | stages([result.timings.model_dump() for result in results])


class CpuMeter:
    """Processor time of processes and their children, from its making to `cores`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = {**pids, THIS_PROCESS: os.getpid()}
        self._began = time.monotonic()
        self._before = {name: self._read(name) for name in self._pids}

    def cores(self) -> dict[str, dict[str, float]]:
        """For each process how many cores it kept busy, and how busy its busiest thread was (of those that live)."""
        seconds = time.monotonic() - self._began
        found = {}
        for name, (total_before, before) in self._before.items():
            total, threads = self._read(name)
            busiest = max((now - before.get(key, 0.0) for key, now in threads.items()), default=0.0)
            busy = {"cores": total - total_before, "busiest_thread": busiest}
            found[name] = {key: round(value / seconds, 3) for key, value in busy.items()}
        return found

    def _read(self, name: str) -> tuple[float, dict[tuple[int, int], float]]:
        """Seconds of all, those of threads that have ended included, and of each thread."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._pids[name])
            family = [process] if name == THIS_PROCESS else [process, *process.children(recursive=True)]
            total = sum(sum(each.cpu_times()[:2]) for each in family)
            threads = {(each.pid, t.id): t.user_time + t.system_time for each in family for t in each.threads()}
            return total, threads
        return 0.0, {}


def verdicts(results: Mapping[str, Any]) -> list[tuple[str, float, str, float, bool]]:
    """What is aimed at: name, measured, relation, bound, whether it holds. Only what was measured is judged."""
    found: list[tuple[str, float, str, float]] = []
    first = next(iter(results["saturated"]), None)
    if first and results.get("text_to_wav"):
        share = first["audio_s_per_s"] / results["text_to_wav"]["audio_s_per_s"]
        found.append(("saturated, share of text to WAV", share, ">=", 0.9))
    for loop in results["loops"]:
        if loop["clients"] == 40 and "p95_ms" in loop and results["settings"]["synthesizer"] == "engine":
            if first and first["requests_per_s"]:
                found.append(
                    ("40 in flight, p95 ms, by the rate", loop["p95_ms"], "<=", 1.25e3 * 40 / first["requests_per_s"])
                )
            found.append(("40 in flight, p95 ms", loop["p95_ms"], "<=", 700.0))
        if loop["clients"] == 1 and "queue_p95_ms" in loop and results["settings"]["synthesizer"] == "tone":
            found.append(("added by an idle queue, p95 ms", loop["queue_p95_ms"], "<=", 15.0))
    for more in results["saturated"][1:]:
        if first and first["requests_per_s"]:
            ratio = more["requests_per_s"] / first["requests_per_s"]
            found.append((f"{more['workers']} workers against one", ratio, ">=", 0.95 * more["workers"]))
    return [(*row, row[1] >= row[3] if row[2] == ">=" else row[1] <= row[3]) for row in found]


def rows_of(figures: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    def cell(value: object) -> str:
        return "–" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)

    rows = [[cell(row.get(key)) for key in columns] for row in figures]
    return markdown(list(columns.values()), rows)


def report(results: Mapping[str, Any]) -> str:
    stage_columns = {name: name.replace("_ms", "") for name in TIMINGS}
    rates = {"requests_per_s": "jobs/s", "audio_s_per_s": "audio-s/s"}
    latencies = {"mean_ms": "mean ms", "p50_ms": "p50", "p95_ms": "p95", "p99_ms": "p99"}
    parts = {f"{name}_p50_ms": name for name in PARTS} | {
        "told_p95_ms": "told p95",
        "queue_p95_ms": "queue p95",
        "added_p95_ms": "with upload",
    }
    tables = [
        rows_of(
            results["saturated"],
            {"workers": "saturated, workers"}
            | rates
            | {"batch_size": "batch"}
            | stage_columns
            | {"gpu_busy_percent": "GPU busy, %"},
        ),
        rows_of(
            results["loops"],
            {"clients": "closed loop, clients"} | latencies | rates | parts | {"declined_polls": "declined"},
        ),
    ]
    loads = [(f"{row['workers']} saturated", row) for row in results["saturated"]]
    loads += [(f"{row['clients']} clients", row) for row in results["loops"]]
    names = list(dict.fromkeys(name for _, row in loads for name in row["cpu"]))
    cpu = [
        [
            load,
            *(
                f"{row['cpu'][n]['cores']:.2f} ({row['cpu'][n]['busiest_thread']:.2f})" if n in row["cpu"] else "–"
                for n in names
            ),
        ]
        for load, row in loads
    ]
    tables.append(markdown(["cores busy (its busiest thread)", *names], cpu))
    judged = [
        [name, f"{value:.3g}", f"{relation} {bound:.3g}", "yes" if holds else "NO"]
        for name, value, relation, bound, holds in verdicts(results)
    ]
    tables.append(markdown(["target", "measured", "bound", "holds"], judged))
    return "\n\n".join(tables)
