"""What is said: sentences out of WordNet, templates for numbers, names and days, and strings of common words.

A line is what the model reads (`written`) and what the voices say (`spoken`); they differ only where a number is
written in digits. Which lines are held out depends on their words alone.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from omnivoice.text.numbers import cardinal, clock, ordinal, year

MIN_WORDS, MAX_WORDS = 2, 16
NUM_COMMON_WORDS = 14_000
HELD_OUT_PERCENT = 2
DIGITS_SHARE = 0.35
"""Of the small numbers, how many are written in digits."""
SMALL = 100
TEMPLATE_SHARE, RANDOM_SHARE = 0.18, 0.12
WORDNET_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")

_GLOSS = re.compile(r" \| (.*)$")
_QUOTED = re.compile(r'"([^"]*)"')
_SPEAKABLE = re.compile(r"[A-Za-z][A-Za-z',?!. -]*")
_WORD = re.compile(r"[a-z']+")


@dataclass(frozen=True, slots=True)
class Line:
    """`kind` is where it is from: `sentence` (WordNet), `template` or `words`."""

    written: str
    spoken: str
    kind: str = "sentence"

    @property
    def is_held_out(self) -> bool:
        """By a hash of the words said, so that no spelling of a held-out line is learnt."""
        words = " ".join(_WORD.findall(self.spoken.lower()))
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big") % 100 < HELD_OUT_PERCENT


def common_words() -> list[str]:
    """The commonest English words, commonest first; needs the package `wordfreq`."""
    from wordfreq import top_n_list  # noqa: PLC0415 - only `prepare` needs it

    return [word for word in top_n_list("en", NUM_COMMON_WORDS) if re.fullmatch(r"[a-z']+", word)]


def wordnet_sentences(folder: Path, known: Container[str]) -> Iterator[str]:
    """Examples and definitions in WordNet's data files that have 2–16 words, all of them `known`."""
    for name in WORDNET_FILES:
        for line in (folder / name).read_text("utf-8").splitlines():
            if match := _GLOSS.search(line):
                gloss = match.group(1)
                for piece in (*_QUOTED.findall(gloss), *_QUOTED.sub("", gloss).split(";")):
                    if sentence := _sentence(piece, known):
                        yield sentence


def _sentence(piece: str, known: Container[str]) -> str | None:
    piece = re.sub(r"\s+", " ", re.sub(r"\([^)]*\)", " ", piece)).strip(" ,-'.")
    words = piece.lower().replace("-", " ").split()
    if not MIN_WORDS <= len(words) <= MAX_WORDS or not _SPEAKABLE.fullmatch(piece):
        return None
    if not all(word.strip(",?!.'").removesuffix("'s") in known for word in words):
        return None
    return piece[0].upper() + piece[1:] + ("" if piece[-1] in "?!" else ".")


# fmt: off
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)
NAMES = (
    "Mary", "John", "Anna", "Peter", "Susan", "David", "Laura", "Michael", "Emma", "Robert", "Alice", "James", "Sarah",
    "Thomas", "Helen", "Daniel", "Julia", "Paul", "Maria", "George", "Lucy", "Henry", "Kate", "Martin", "Jane", "Simon",
    "Rose", "Frank", "Ellen", "Jack",
)
PLACES = (
    "London", "Paris", "Berlin", "Rome", "Boston", "Chicago", "Dublin", "Madrid", "Vienna", "Sydney", "Toronto",
    "Oxford",
)
THINGS = (
    "books", "people", "houses", "tickets", "apples", "letters", "cars", "minutes", "miles", "pages", "days", "chairs",
    "horses", "students",
)
# fmt: on
TEMPLATES = (
    "There are {n} {things} in the room.",
    "{name} bought {n} {things} on {day}.",
    "The number is {n}.",
    "It costs {money}.",
    "{name} paid {money} for the {things}.",
    "The train to {place} leaves at {time}.",
    "Call {name} at {time}.",
    "We will meet {name} on {day} at {time}.",
    "She was born in {year}.",
    "The house was built in {year}.",
    "{name} moved to {place} in {year}.",
    "The meeting is on {month} {nth}.",
    "Today is {day}, {month} {nth}, {year}.",
    "{name} and {name} live in {place}.",
    "My name is {name}, and I come from {place}.",
    "It is {n} degrees in {place} on {day}.",
    "Turn to page {n}.",
    "{n}, {n}, {n}.",
    "He was the {nth} to arrive in {place}.",
    "Is {name} coming on {day}, or in {month}?",
)


def templates(rng: random.Random) -> Line:
    """One sentence with numbers, times, dates, money or names."""
    written, spoken = [], []
    for piece in re.split(r"(\{\w+\})", rng.choice(TEMPLATES)):
        said, small = _FILLERS[piece[1:-1]](rng) if piece.startswith("{") else (piece, None)
        spoken.append(said)
        written.append(str(small) if small is not None and rng.random() < DIGITS_SHARE else said)
    return Line(_whole(written), _whole(spoken), "template")


def _whole(pieces: Sequence[str]) -> str:
    return _capital("".join(pieces).replace("..", "."))


def _number(rng: random.Random) -> tuple[str, int | None]:
    number = rng.randrange(10 ** rng.choice((1, 2, 2, 3, 4, 4, 6)))
    return cardinal(number), number if number < SMALL else None


def _money(rng: random.Random) -> tuple[str, None]:
    whole, cents = rng.randrange(1, 10 ** rng.choice((1, 2, 3))), rng.choice((0, rng.randrange(1, 100)))
    unit, part = rng.choice((("dollar", "cent"), ("pound", "penny"), ("euro", "cent")))
    words = f"{cardinal(whole)} {unit}" + ("s" if whole > 1 else "")
    if cents:
        parts = part if cents == 1 else "pence" if part == "penny" else f"{part}s"
        words += f" and {cardinal(cents)} {parts}"
    return words, None


def _time(rng: random.Random) -> tuple[str, None]:
    words, half = clock(rng.randrange(1, 13), rng.choice((0, rng.randrange(60)))), rng.choice(("", " a.m.", " p.m."))
    return (words.removesuffix(" o'clock") if half else words) + half, None


def _one_of(words: Sequence[str]) -> Callable[[random.Random], tuple[str, None]]:
    return lambda rng: (rng.choice(words), None)


_FILLERS: dict[str, Callable[[random.Random], tuple[str, int | None]]] = {
    "n": _number,
    "money": _money,
    "time": _time,
    "year": lambda rng: (year(rng.randrange(1500, 2050)), None),
    "nth": lambda rng: (ordinal(rng.randrange(1, 32)), None),
    "name": _one_of(NAMES),
    "place": _one_of(PLACES),
    "day": _one_of(DAYS),
    "month": _one_of(MONTHS),
    "things": _one_of(THINGS),
}


def random_words(rng: random.Random, words: Sequence[str]) -> Line:
    """A string of common words without sense, which covers words that no sentence has."""
    text = _capital(" ".join(rng.choice(words) for _ in range(rng.randint(3, 10))) + ".")
    return Line(text, text, "words")


def make_lines(sentences: Iterable[str], words: Sequence[str], num_lines: int, seed: int) -> list[Line]:
    """`num_lines` different lines (fewer where the sentences are few) in random order, the same for the same seed."""
    rng = random.Random(seed)
    ordered = sorted(set(sentences))
    rng.shuffle(ordered)
    num_templates, num_random = int(num_lines * TEMPLATE_SHARE), int(num_lines * RANDOM_SHARE)
    lines = [Line(sentence, sentence) for sentence in ordered[: num_lines - num_templates - num_random]]
    lines += [templates(rng) for _ in range(num_templates)]
    lines += [random_words(rng, words) for _ in range(num_random)]
    lines = list(dict.fromkeys(lines))
    rng.shuffle(lines)
    return lines


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    path.write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines), encoding="utf-8")


def read_lines(path: Path) -> list[Line]:
    return [Line(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
