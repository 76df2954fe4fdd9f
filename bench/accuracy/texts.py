"""What is spoken: 300 held-out sentences, longer texts made of them, and sentences with numbers written in digits.

No torch. `sentences.txt` are the first 300 lines of the training's `text.jsonl` that `training.check` would take: held
out by a hash of their words, from WordNet 3.0 (Princeton University; its licence lets them be used and passed on with
its notice, `training/licences`), of 5 to 12 words. `digits.txt` are sentences after the training's templates, held out
by the same hash; what is written in digits stands in braces, with the words that are said behind the bar.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnivoice.parameters import SamplingParams
from omnivoice.planning import plan
from omnivoice.request import SynthesisRequest
from training.recipe import VOICES

_FOLDER = Path(__file__).parent
SENTENCES = tuple((_FOLDER / "sentences.txt").read_text("utf-8").splitlines())
DIGITS = tuple((_FOLDER / "digits.txt").read_text("utf-8").splitlines())
_IN_DIGITS = re.compile(r"\{([^|}]*)\|([^}]*)\}")

SHORT, JOINED, MINUTE, LONG, NUMBERS = "short", "joined", "40 s", "3 min", "digits"
_MADE = {JOINED: (48, 11.0), MINUTE: (12, 38.0), LONG: (6, 176.0)}
"""How many longer texts there are, and the seconds by the engine's own estimate from which they are long enough."""
KINDS = (SHORT, JOINED, MINUTE, LONG, NUMBERS)


@dataclass(frozen=True, slots=True)
class Utterance:
    """A text to speak, with a voice and a seed of its own.

    `spoken` is what a listener should hear; `numbers` are what `text` has in digits, each with the words for it.
    `name` is the utterance's in every file.
    """

    name: str
    text: str
    spoken: str
    instruct: str
    seed: int
    numbers: tuple[tuple[str, str], ...] = ()

    def request(self, params: SamplingParams) -> SynthesisRequest:
        has_numbers = bool(self.numbers)
        return SynthesisRequest(
            self.text, "en", self.instruct, seed=self.seed, params=params, normalize_text=has_numbers
        )


def utterances(kind: str, sentences: int = len(SENTENCES)) -> list[Utterance]:
    """The texts of a kind, voices in turns; fewer of all kinds where fewer than all sentences are wanted."""
    if kind == SHORT:
        return [_utterance(kind, index, text) for index, text in enumerate(SENTENCES[:sentences])]
    share = sentences / len(SENTENCES)
    made = [_with_numbers(index, line) for index, line in enumerate(DIGITS)] if kind == NUMBERS else _made(kind)
    return made[: math.ceil(share * len(made))]


def _utterance(kind: str, index: int, text: str) -> Utterance:
    design = ", ".join(tuple(VOICES.values())[index % len(VOICES)])
    return Utterance(f"{kind.replace(' ', '')}-{index:03}", text, text, design, seed=index)


def _with_numbers(index: int, line: str) -> Utterance:
    one = _utterance(NUMBERS, index, _IN_DIGITS.sub(r"\1", line))
    spoken = _IN_DIGITS.sub(r"\2", line)
    return Utterance(one.name, one.text, spoken, one.instruct, one.seed, tuple(_IN_DIGITS.findall(line)))


def _made(kind: str) -> list[Utterance]:
    """Consecutive sentences put together until the engine would take long enough for them."""
    number, seconds = _MADE[kind]
    left = itertools.cycle(SENTENCES)
    return [_utterance(kind, index, _joined(left.__next__, seconds)) for index in range(number)]


def _joined(next_sentence: Callable[[], str], seconds: float) -> str:
    text = next_sentence()
    while plan(SynthesisRequest(text, "en")).seconds < seconds:
        text += f" {next_sentence()}"
    return text


def instructs_of(chosen: Sequence[Utterance]) -> list[str]:
    return [one.instruct for one in chosen]
