"""Speak the texts in every row of the table, and compare codes with the baseline's. The engine's packages only."""

from __future__ import annotations

import argparse
import gc
import itertools
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from bench.accuracy.agreement import (
    FORCED_UTTERANCES,
    Pieces,
    State,
    agreement,
    forced_agreement,
    forced_tokens,
    states_of,
)
from bench.accuracy.kept import Folder
from bench.accuracy.rows import (
    BASELINE,
    BATCH,
    BATCHED,
    ENGINES,
    RATE,
    REFERENCE,
    Row,
    chosen,
    in_turns,
    rows_of,
)
from bench.accuracy.texts import KINDS, SHORT, Utterance, utterances
from bench.arrivals import Arrivals, Clients, poisson_times
from bench.record import circumstances
from bench.serving import ALL_TOKENS, Server, Trace
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisResult
from omnivoice.parameters import FRAME_RATE
from worker.window import WindowLimits

WINDOW_SECONDS = 0.02
"""How long a window of request mode stays open, as the worker's does."""


class RowFailed(Exception):
    """A row cannot be had, or one of its requests failed; the others' figures do not depend on it."""


def start(name: str, arguments: argparse.Namespace) -> Engine:
    """An engine of the table, warm."""
    config = EngineConfig(device=arguments.device, max_batch_requests=BATCH, **ENGINES[name])
    engine = Engine.from_checkpoint(arguments.checkpoint, config)
    few = [one.request(SamplingParams(num_step=2)) for one in utterances(SHORT)[:4]]
    engine.generate(few)
    engine.generate(few[:1])
    return engine


def pieces_of(text: str, result: SynthesisResult) -> Pieces:
    """Raises `RowFailed` for a result without codes."""
    if result.codes is None:
        raise RowFailed(f"{text[:60]!r}: {result.error}")
    pieces = result.codes if isinstance(result.codes, list) else [result.codes]
    return [piece.astype(np.int16) for piece in pieces]


def spoken(engine: Engine, row: Row, texts: Sequence[Utterance], params: SamplingParams) -> dict[str, Pieces]:
    """The codes of all texts by name; the requests come as the row says."""
    requests = [one.request(params) for one in texts]
    if row.how == BATCHED:
        size = int(row.size)
        results = [
            result for first in range(0, len(texts), size) for result in engine.generate(requests[first : first + size])
        ]
    else:
        results = _served(engine, row, requests)
    return {one.name: pieces_of(one.text, result) for one, result in zip(texts, results, strict=True)}


def _served(engine: Engine, row: Row, requests: Sequence[Any]) -> list[SynthesisResult]:
    """Requests come in one by one, as to a worker."""
    total, found = len(requests), {}
    arrivals: Arrivals = Clients(int(row.size), total)
    if row.how == RATE:
        arrivals = Arrivals(list(itertools.islice(poisson_times(row.size, 10 + 2 * total / row.size, seed=0), total)))
    limits = WindowLimits(WINDOW_SECONDS, engine.config.max_batch_requests, ALL_TOKENS)
    Server(engine, limits).run(arrivals, iter(requests), Trace(engine.config.mode, row.name), found.__setitem__)
    return [found[index] for index in range(total)]


def texts_of(row: Row, arguments: argparse.Namespace) -> list[Utterance]:
    texts = utterances(row.kind, arguments.sentences)
    return texts[: arguments.rate_sentences] if row.how == RATE else texts


def figures_of(
    row: Row, codes: Mapping[str, Pieces], seconds: float, num_step: int, baseline: Mapping[str, Pieces] | None
) -> dict[str, Any]:
    """`audio_seconds` are frames / 25; codes are compared where both were asked for the same."""
    same = row.num_step is None and row.engine != REFERENCE
    return {
        "engine": row.engine,
        "num_step": row.num_step or num_step,
        "paced": row.how == RATE,
        "seconds": round(seconds, 2),
        "audio_seconds": sum(piece.shape[1] for pieces in codes.values() for piece in pieces) / FRAME_RATE,
        "agreement": agreement(codes, baseline) if same and baseline else None,
    }


class Table:
    """The rows of one run: the baseline's codes and states, by which the others are compared."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._baseline: dict[str, dict[str, Pieces]] = {}
        self._states: list[State] = []
        self._wanted: list[Any] = []
        about = {
            **circumstances("bench.accuracy", arguments.device),
            "threads": torch.get_num_threads(),
            "num_step": arguments.num_step,
        }
        self.folder = Folder.new(arguments.out, about)
        for kind in KINDS:
            texts = {one.name: asdict(one) for one in utterances(kind, arguments.sentences)}
            self.folder.results["texts"].update(texts)

    def run(self, rows: Sequence[Row]) -> None:
        """All rows; what is not there is named."""
        for group in in_turns(rows):
            if self._arguments.device == "cpu" and group[0].needs_cuda:
                self._miss([group[0].engine], "needs CUDA")
                continue
            gc.collect()  # the engine before it leaves its memory to this one
            if self._arguments.device == "cuda":
                torch.cuda.empty_cache()
            try:
                if group[0].engine == REFERENCE:
                    self._refer(group[0])
                else:
                    self._run_engine(group)
            except Exception as error:
                if SHORT not in self._baseline:
                    raise
                traceback.print_exc()
                left = [row.name for row in group if row.slug not in self.folder.results["rows"]]
                self._miss(left, f"{type(error).__name__}: {error}".splitlines()[0])
        self.folder.write()

    def _run_engine(self, group: Sequence[Row]) -> None:
        started = time.perf_counter()
        engine = start(group[0].engine, self._arguments)
        print(f"{group[0].engine}: started in {time.perf_counter() - started:.1f} s", flush=True)
        for row in group:
            params, texts = row.params(self._arguments.num_step), texts_of(row, self._arguments)
            started = time.perf_counter()
            try:
                codes = spoken(engine, row, texts, params)
            except RowFailed as error:
                self._miss([row.name], str(error))
                continue
            seconds = time.perf_counter() - started
            if row.engine == BASELINE and row.num_step is None and row.how == BATCHED and row.size == BATCH:
                self._baseline[row.kind] = codes
            self._keep(row, codes, seconds)
        self._force(engine, group[0].engine)

    def _keep(self, row: Row, codes: Mapping[str, Pieces], seconds: float) -> None:
        figures = figures_of(row, codes, seconds, self._arguments.num_step, self._baseline.get(row.kind))
        self.folder.keep(row, codes, figures)
        equal = "" if figures["agreement"] is None else f", {100 * figures['agreement']['codes']:.2f} % of codes equal"
        print(f"{row.name}: {seconds:.1f} s for {figures['audio_seconds']:.0f} s of audio{equal}", flush=True)

    def _force(self, engine: Engine, name: str) -> None:
        """One step from the baseline's states, with every engine."""
        params = SamplingParams(num_step=self._arguments.num_step)
        if not self._states:
            self._states = states_of(engine, utterances(SHORT, self._arguments.sentences)[:FORCED_UTTERANCES], params)
        tokens = forced_tokens(engine, self._states, params)
        self._wanted = self._wanted or tokens
        shares = forced_agreement(tokens, self._wanted, self._states)
        self.folder.results["forced"][name] = shares
        self.folder.write()
        shown = ", ".join(f"{100 * (by_step['all'] or 0):.2f} % of {cells} cells" for cells, by_step in shares.items())
        print(f"{name}: one step from the baseline's states: {shown} equal", flush=True)

    def _refer(self, row: Row) -> None:
        from bench.accuracy.reference import speak  # noqa: PLC0415 - imports what only peers need

        codes, seconds = speak(texts_of(row, self._arguments), self._arguments)
        self._keep(row, codes, seconds)

    def _miss(self, names: Sequence[str], why: str) -> None:
        for name in names:
            self.folder.results["not_there"][name] = why
            print(f"{name}: not there: {why}", flush=True)


def generate(arguments: argparse.Namespace) -> None:
    """The command of that name."""
    rows = rows_of(arguments.device, arguments.rate, has_reference=arguments.reference is not None)
    try:
        rows = chosen(rows, arguments.rows)
    except ValueError as error:
        raise SystemExit(f"--rows: {error}") from None
    Table(arguments).run(rows)
