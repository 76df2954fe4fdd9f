"""Numbers, times, dates and money in digits, and the words that an English speaker says for them."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnivoice.parameters import MAX_TEXT_CHARS
from omnivoice.planning import plan
from omnivoice.request import SynthesisRequest
from omnivoice.text import estimate_frames, normalize_text
from omnivoice.text.numbers import cardinal, digits, ordinal, year

CASES = {
    # numbers to 9,999
    "I have 7 cats.": "I have seven cats.",
    "There are 0 left.": "There are zero left.",
    "She is 21 today.": "She is twenty-one today.",
    "It weighs 40 pounds.": "It weighs forty pounds.",
    "We need 100 chairs.": "We need one hundred chairs.",
    "Room 199 is free.": "Room one hundred ninety-nine is free.",
    "He ran 512 miles.": "He ran five hundred twelve miles.",
    "They sold 1,000 tickets.": "They sold one thousand tickets.",
    "The number is 2345.": "The number is two thousand three hundred forty-five.",
    "About 9,999 people came.": "About nine thousand nine hundred ninety-nine people came.",
    "1005 is odd.": "one thousand five is odd.",
    "It took 8,012 steps.": "It took eight thousand twelve steps.",
    # beyond, and other kinds of numbers
    "A crowd of 15,300.": "A crowd of fifteen thousand three hundred.",
    "It has 2000000 users.": "It has two million users.",
    "Pi is 3.14.": "Pi is three point one four.",
    "It was -5 outside.": "It was minus five outside.",
    "Only 50% agreed.": "Only fifty percent agreed.",
    "Rates rose 2.5 % again.": "Rates rose two point five percent again.",
    "She came 1st and he came 22nd.": "She came first and he came twenty-second.",
    "Add 3/4 of a cup.": "Add three quarters of a cup.",
    "Agent 007 reports.": "Agent zero zero seven reports.",
    "Read pages 10-20.": "Read pages ten to twenty.",
    "Call 555-1234 now.": "Call five five five, one two three four now.",
    # times
    "It is 7:45.": "It is seven forty-five.",
    "Be there at 9:05.": "Be there at nine oh five.",
    "Lunch is at 12:00.": "Lunch is at twelve o'clock.",
    "We close at 8:30 pm today.": "We close at eight thirty p.m. today.",
    "Meet me at 6 a.m. sharp.": "Meet me at six a.m. sharp.",
    "The train leaves at 14:20.": "The train leaves at fourteen twenty.",
    "It starts at 10:00 AM.": "It starts at ten a.m.",
    "From 3pm to 5pm.": "From three p.m. to five p.m.",
    # dates
    "On March 5, 2024, it rained.": "On March fifth, twenty twenty-four, it rained.",
    "It is due Dec. 31.": "It is due December thirty-first.",
    "She left on 14 July 1999.": "She left on the fourteenth of July, nineteen ninety-nine.",
    "On the 3rd of May we met.": "On the third of May we met.",
    "Due 2025-01-20.": "Due January twentieth, twenty twenty-five.",
    "Signed 7/4/1976.": "Signed July fourth, nineteen seventy-six.",
    "Signed 25/12/2010.": "Signed December twenty-fifth, twenty ten.",
    "He was born in 1984.": "He was born in nineteen eighty-four.",
    "Since 2005 it has grown.": "Since two thousand five it has grown.",
    "In May 1906 it shook.": "In May nineteen oh six it shook.",
    "From 1914 to 1918.": "From nineteen fourteen to nineteen eighteen.",
    "Music of the 1980s.": "Music of the nineteen eighties.",
    # money
    "It costs $3.50.": "It costs three dollars and fifty cents.",
    "That is $1.": "That is one dollar.",
    "A $0.99 song.": "A ninety-nine cent song.",
    "Rent is $1,250 a month.": "Rent is one thousand two hundred fifty dollars a month.",
    "He paid £20.01.": "He paid twenty pounds and one penny.",
    "It made $2.5 million.": "It made two point five million dollars.",
    "A €15 ticket.": "A fifteen euro ticket.",
}
KEPT = (
    "[laughter] Say [B EY1 S] and ZHE2.",
    "Vitamin B12 and paper A4.",
    "[2345]",
    "Nothing to read here.",
    "Only may and march, no day.",
    "",
)


def test_there_are_fifty_cases() -> None:
    assert len(CASES) == 50


@pytest.mark.parametrize("written", CASES)
def test_case(written: str) -> None:
    assert normalize_text(written) == CASES[written]


@pytest.mark.parametrize("text", KEPT)
def test_kept_as_it_is(text: str) -> None:
    assert normalize_text(text) == text


def test_tags_stay_beside_what_is_read() -> None:
    assert normalize_text("[sigh] 12 [D AY1 S]") == "[sigh] twelve [D AY1 S]"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("In 1984 cases it failed.", "In one thousand nine hundred eighty-four cases it failed."),
        ("In 1984 was it so?", "In nineteen eighty-four was it so?"),
        ("Only 5 may enter.", "Only five may enter."),
        ("A 16:9 screen and 5km", "A sixteen to nine screen and five km"),
        ("version 1.2.3", "version one point two point three"),
        ("covid-19, a 5-year-old", "covid-nineteen, a five-year-old"),
        ("#1 of 1234567890123456", "number one of " + digits("1234567890123456")),
        ("a 5 dollar bill for $5", "a five dollar bill for five dollars"),
    ],
)
def test_what_looks_alike(written: str, said: str) -> None:
    assert normalize_text(written) == said


@given(st.text(max_size=60))
def test_never_fails_and_is_done_in_one_go(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) == once


@given(st.from_regex(r"[$£-]?[0-9.,:/%$ -]{1,20}(am|pm|th|s)?", fullmatch=True))
def test_never_fails_on_digits_and_signs(text: str) -> None:
    assert isinstance(normalize_text(text), str)


@pytest.mark.parametrize("piece", ["1", "1,", "$1 ", "in 1984 ", "[1"])
def test_texts_of_the_greatest_length_take_no_time(piece: str) -> None:
    text = (piece * MAX_TEXT_CHARS)[: MAX_TEXT_CHARS - 2] + "th"
    start = time.perf_counter()
    normalize_text(text)
    assert time.perf_counter() - start < 10  # under a second on an idle core; minutes where a pattern backtracks


@given(st.integers(0, 9_999))
def test_numbers_to_9999_hold_no_digit(number: int) -> None:
    words = normalize_text(f"{number}")
    assert words == cardinal(number)
    assert re.fullmatch(r"[a-z -]+", words)


def test_cardinals_differ_and_limits_are_named() -> None:
    assert len({cardinal(number) for number in range(10_000)}) == 10_000
    assert cardinal(10**15 - 1).startswith("nine hundred ninety-nine trillion")
    with pytest.raises(ValueError, match="up to 15 digits"):
        cardinal(10**15)


def test_ordinals_and_years() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 5, 8, 9, 12, 20, 21, 100)] == [
        *("first", "second", "third", "fifth", "eighth", "ninth", "twelfth", "twentieth", "twenty-first"),
        "one hundredth",
    ]
    assert [year(n) for n in (1000, 1066, 1900, 2000, 2009, 2010, 2099)] == [
        *("one thousand", "ten sixty-six", "nineteen hundred", "two thousand", "two thousand nine", "twenty ten"),
        "twenty ninety-nine",
    ]


def test_a_request_asks_for_it_and_its_length_is_that_of_the_words() -> None:
    text = "It costs $3.50 at 7:45, for 2345 people and 199 children."
    asked = plan(SynthesisRequest(text, "en", normalize_text=True))
    assert asked.text == normalize_text(text)
    assert asked.frames == estimate_frames(normalize_text(text))
    assert asked.warnings == ()
    assert plan(SynthesisRequest(text, "en")).text == text
    assert plan(SynthesisRequest(text, normalize_text=True)).text == normalize_text(text)


@pytest.mark.parametrize(("text", "language"), [("Es sind 7.", "de"), ("有7个", None)])
def test_other_languages_are_left_alone_with_a_warning(text: str, language: str | None) -> None:
    planned = plan(SynthesisRequest(text, language, normalize_text=True))
    assert planned.text == text
    assert planned.warnings == ("normalize_text knows English only; the text is read as it is",)
