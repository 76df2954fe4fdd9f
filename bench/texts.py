"""What is spoken in the benchmarks: sixteen sentences of about seventy characters, and texts of other lengths."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

SENTENCES = (
    "The last train had left the station before anyone noticed the old bag.",
    "She wrote her name in the margin and handed the book back to the clerk.",
    "Every morning the baker opens the shutters while the street is asleep.",
    "A cold wind came down from the hills and rattled the windows all night.",
    "We counted the lanterns twice, and each time there was one too many.",
    "My grandfather kept bees behind the shed and never once wore a glove.",
    "The museum closes at six, but the garden stays open until it is dark.",
    "He folded the map so badly that the river ended up beside the desert.",
    "Put the kettle on, sit down for a minute, and tell me how it went.",
    "Nobody in the village could say who had painted the door bright green.",
    "The engine coughed, caught for a second, and then fell silent again.",
    "Three of the letters were never opened, and the fourth had been burned.",
    "Light travels through the water and draws slow patterns on the stones.",
    "If you follow the fence to the end, you will find the gate by the oak.",
    "They moved the piano up four flights of stairs and then down again.",
    "Rain had washed the chalk off the pavement, so the game began anew.",
)
"""About seventy characters each, plain English, no digits and no tags: every package reads them alike."""

CHARS_PER_SECOND = 17.0
"""Pace of the sentences above when each takes 4.1 seconds."""

SENTENCE_SECONDS = 4.1
VOICE_SECONDS = 6.0
VOICE_TEXT = "I have lived in this house for forty years, and I know the sound of every stair and of every hinge in it."
"""What the reference voice of six seconds says."""


def texts_of(seconds: float, count: int) -> list[str]:
    """Return `count` texts for about `seconds` of audio each; at 4.1 s these are the sentences themselves."""
    if seconds == SENTENCE_SECONDS:
        return [SENTENCES[index % len(SENTENCES)] for index in range(count)]
    return [_text_from(index, seconds) for index in range(count)]


def mixed_texts(seed: int, low: float = 1.0, high: float = 12.0) -> Iterator[str]:
    """Texts of mixed lengths without end: log-uniform from `low` to `high` seconds, the same for the same seed."""
    random_ = random.Random(seed)
    for index in itertools.count():
        yield _text_from(index, low * (high / low) ** random_.random())


def _text_from(index: int, seconds: float) -> str:
    """Whole words, from sentence `index` on, for about `seconds` of audio."""
    words: list[str] = []
    most = max(1, round(seconds * CHARS_PER_SECOND))
    length = -1
    for sentence in itertools.islice(itertools.cycle(SENTENCES), index % len(SENTENCES), None):
        for word in sentence.split():
            if words and length + 1 + len(word) > most:
                return " ".join(words)
            words.append(word)
            length += 1 + len(word)
    raise AssertionError("a cycle does not end")
