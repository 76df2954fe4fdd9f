"""How near codes are to others: shares of equal ones, and what one step makes of the same state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.accuracy.texts import Utterance
from omnivoice import Engine, SamplingParams
from omnivoice.chunk_run import ChunkRun
from omnivoice.device import on_stream
from omnivoice.parameters import CODEBOOK_SIZE, NUM_CODEBOOKS
from omnivoice.planning import plan

Pieces = list[NDArray[np.int16]]
"""The codes (8, frames) of an utterance, a piece a chunk."""
MASK = CODEBOOK_SIZE

FORCED_AT = (0, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 15 / 16)
"""Where, among the steps, a mode goes one step from the baseline's codes."""
FORCED_BATCH = 8
FORCED_UTTERANCES = 48


@dataclass(frozen=True, slots=True)
class State:
    """The baseline's codes (frames, 8) of an utterance before and after `step`."""

    utterance: Utterance
    step: int
    before: NDArray[Any]
    after: NDArray[Any]

    @property
    def masked(self) -> NDArray[np.bool_]:
        masked: NDArray[np.bool_] = self.before == MASK
        return masked

    @property
    def unmasked_next(self) -> NDArray[np.bool_]:
        changed: NDArray[np.bool_] = self.before != self.after
        return changed


def agreement(found: Mapping[str, Pieces], wanted: Mapping[str, Pieces]) -> dict[str, Any] | None:
    """Shares of equal codes among the utterances that both have, and of utterances in which all are; None of none."""
    pairs = [(np.concatenate(found[name], 1), np.concatenate(wanted[name], 1)) for name in wanted if name in found]
    equal = [mine == theirs if mine.shape == theirs.shape else np.zeros(theirs.shape, bool) for mine, theirs in pairs]
    if not equal:
        return None
    cells = np.concatenate(equal, axis=1)
    return {
        "codes": float(cells.mean()),
        "by_codebook": [float(share) for share in cells.mean(axis=1)],
        "utterances": float(np.mean([bool(one.all()) for one in equal])),
    }


def share_where(
    found: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]], where: Sequence[NDArray[np.bool_]]
) -> float | None:
    """Share of equal tokens among the chosen cells of all arrays; None where none are chosen."""
    equal = [(ours == theirs)[cells] for ours, theirs, cells in zip(found, wanted, where, strict=True)]
    cells = np.concatenate(equal)
    return float(cells.mean()) if len(cells) else None


def forced_agreement(
    found: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]], states: Sequence[State]
) -> dict[str, dict[str, float | None]]:
    """Shares of equal tokens by step and over "all": of masked cells, and of those that the baseline unmasks next."""
    shares: dict[str, dict[str, float | None]] = {"masked": {}, "unmasked next": {}}
    for step in ("all", *sorted({state.step for state in states})):
        at = [index for index, state in enumerate(states) if step in ("all", state.step)]
        ours, theirs = [found[index] for index in at], [wanted[index] for index in at]
        shares["masked"][str(step)] = share_where(ours, theirs, [states[index].masked for index in at])
        shares["unmasked next"][str(step)] = share_where(ours, theirs, [states[index].unmasked_next for index in at])
    return shares


def run_of(engine: Engine, utterance: Utterance, params: SamplingParams) -> ChunkRun:
    """What the engine makes of a request of one chunk; a test compares the codes of both."""
    made = plan(utterance.request(params))
    prompt = engine._tokenizer.prompt(made.chunks[0].text, made.language, made.instruct, denoise=False)
    return ChunkRun(utterance.name, 0, prompt, None, made.frames, params, utterance.seed)


def states_of(engine: Engine, utterances: Sequence[Utterance], params: SamplingParams) -> list[State]:
    """Run the utterances and keep their codes before and after the steps at `FORCED_AT`."""
    steps = {int(share * params.num_step) for share in FORCED_AT}
    executor, states = engine._executor, []
    with on_stream(engine._stream):
        for first in range(0, len(utterances), FORCED_BATCH):
            batch = utterances[first : first + FORCED_BATCH]
            runs = [run_of(engine, utterance, params) for utterance in batch]
            for run in runs:
                run.codes = torch.full((run.frames, NUM_CODEBOOKS), MASK, device=engine.codec.device)
            executor.set_runs(runs)
            for step in range(params.num_step):
                before = [executor.codes(run).cpu().numpy() for run in runs]
                executor.step()
                if step in steps:
                    after = [executor.codes(run).cpu().numpy() for run in runs]
                    states += list(map(State, batch, [step] * len(batch), before, after))
            executor.set_runs([])
    return states


def forced_tokens(engine: Engine, states: Sequence[State], params: SamplingParams) -> list[NDArray[Any]]:
    """The tokens that a mode would put into each state: one step that unmasks all that is left; (frames, 8) each."""
    executor, found = engine._executor, []
    with on_stream(engine._stream):
        for first in range(0, len(states), FORCED_BATCH):
            runs = []
            for state in states[first : first + FORCED_BATCH]:
                run = run_of(engine, state.utterance, params)
                run.step, run.codes = state.step, torch.from_numpy(state.before).to(engine.codec.device)
                masked, after = int(state.masked.sum()), state.step + 1
                run.schedule = (*run.schedule[: state.step], masked, *run.schedule[after:])
                runs.append(run)
            executor.set_runs(runs)
            executor.step()
            found += [executor.codes(run).cpu().numpy() for run in runs]
            executor.set_runs([])
    return found
