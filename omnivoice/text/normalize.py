"""Numbers, times, dates and money in English text, written with digits, as the words that are said.

Opt-in (`normalize_text` of a request): the model reads digits one by one. What is in brackets (tags, pronunciation) and
digits behind a letter (pinyin such as ZHE2, A4, B2B) stay as they are. Dates with slashes are American, month first,
unless that cannot be.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from omnivoice.text.numbers import MAX_DIGITS, cardinal, clock, digits, ordinal, year
from omnivoice.text.tags import SPAN

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

# fmt: off
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)
# fmt: on
_MONTH_PATTERN = (
    r"(?-i:(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?))\b\.?"
)
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)|\d+"
_DECIMAL = rf"(?:{_NUMBER})(?:\.\d+)?"
_START = r"(?<![\w.,:/-])"
"""Before a number that stands for itself: no letter, no digit, no part of a longer number."""
_HALF = r"(?P<half>[ap])\.?m\b\.?"
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
}
_FRACTIONS = {2: "half", 4: "quarter"}
_NOT_PLURAL = r"(?!\s+(?!(?:was|is|has|this|his|its|as|us|always|perhaps|does)\b)[a-z]+s\b)"
"""A year is followed by no plural: "in 1984" and "in 1984 was", but "in 1984 cases"."""


def normalize_text(text: str) -> str:
    """Return `text` with numbers, times, dates and money in words: "At 7:45, $3.50." → "At seven forty-five, three …".

    What it cannot read stays as it is. English only; the caller knows the language.
    """
    pieces, end = [], 0
    for span in SPAN.finditer(text):
        pieces += [_in_words(text[end : span.start()]), span.group()]
        end = span.end()
    return "".join([*pieces, _in_words(text[end:])])


def _in_words(text: str) -> str:
    if not any(character.isdecimal() and character.isascii() for character in text):
        return text
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return text


def _value(number: str) -> str:
    """Words of digits with or without thousands' commas and a decimal part; digit by digit where it has no value."""
    whole, _, decimals = number.replace(",", "").partition(".")
    is_code = len(whole) > 1 and whole.startswith("0")
    words = digits(whole) if is_code or len(whole) > MAX_DIGITS else cardinal(int(whole))
    return f"{words} point {digits(decimals)}" if decimals else words


def _money(match: re.Match[str]) -> str:
    one, many, one_part, many_parts = _CURRENCIES[match["currency"]]
    article = match["article"] or ""
    if article:  # "a five dollar bill"
        many, many_parts = one, one_part
    amount, scale = match["amount"], match["scale"]
    whole, _, decimals = amount.replace(",", "").partition(".")
    sign = article + ("minus " if match["sign"] else "")
    if scale or len(decimals) not in (0, 2):
        return f"{sign}{_value(amount)}{f' {scale.lower()}' if scale else ''} {many}"
    parts = []
    if whole.strip("0") or not int(decimals or 0):
        parts.append(f"{_value(whole)} {one if whole == '1' else many}")
    if int(decimals or 0):
        parts.append(f"{cardinal(int(decimals))} {one_part if int(decimals) == 1 else many_parts}")
    return sign + " and ".join(parts)


def _time(match: re.Match[str]) -> str:
    hour, minute, second, half = int(match["hour"]), int(match["minute"] or 0), match["second"], match["half"]
    if hour > 24 or minute > 59 or int(second or 0) > 59:
        return match.group()
    words = clock(hour, minute)
    if half or second:
        words = words.removesuffix(" o'clock")
    if second:
        words = f"{words if minute else f'{words} hours'} and {_value(str(int(second)))} seconds"
    return f"{words} {half.lower()}.m." if half else words


def _month(name: str) -> str:
    return next(month for month in _MONTHS if month.startswith(name[:3].capitalize()))


def _day_of_month(match: re.Match[str]) -> str:
    """March 5, 2024; 5 March 2024; with or without the year."""
    day, written = int(match["day"]), match["year"]
    if not 1 <= day <= 31:
        return match.group()
    month = _month(match["month"])
    is_day_first = match.start("day") < match.start("month")
    words = f"{match['the'] or 'the '}{ordinal(day)} of {month}" if is_day_first else f"{month} {ordinal(day)}"
    return f"{words}, {year(int(written))}" if written else words


def _month_and_year(match: re.Match[str]) -> str:
    return f"{_month(match['month'])} {year(int(match['year']))}"


def _numeric_date(match: re.Match[str]) -> str:
    month, day, written = int(match["month"]), int(match["day"]), int(match["year"])
    if month > 12:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match.group()
    return f"{_MONTHS[month - 1]} {ordinal(day)}, {year(written)}"


def _fraction(match: re.Match[str]) -> str:
    above, below = int(match["above"]), int(match["below"])
    if (above, below) == (24, 7):
        return "twenty-four seven"
    if not 1 <= above < below <= 20:
        return f"{_value(match['above'])} over {_value(match['below'])}"
    part = _FRACTIONS.get(below) or ordinal(below)
    return f"{cardinal(above)} {part if above == 1 else 'halves' if below == 2 else f'{part}s'}"


def _ordinal(match: re.Match[str]) -> str:
    number = match["number"].replace(",", "")
    return match.group() if len(number) > MAX_DIGITS else ordinal(int(number))


def _decade(match: re.Match[str]) -> str:
    words = year(int(match["year"]))
    return words[:-1] + "ies" if words.endswith("y") else f"{words}s"


def _years(match: re.Match[str]) -> str:
    """The years in what was found, of which every number is one."""
    return re.sub(r"\d{4}", lambda found: year(int(found.group())), match.group())


def _number(match: re.Match[str]) -> str:
    sign = "minus " if match["sign"] else ""
    hash_sign = "number " if match["hash"] else ""
    words = f"{hash_sign}{sign}{_value(match['number'])}"
    if match["percent"]:
        return f"{words} percent"
    return f"{words} " if match["letter"] is not None else words


def _rule(pattern: str, words: Callable[[re.Match[str]], str]) -> Rule:
    return re.compile(pattern, re.IGNORECASE), words


_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_CENTURY = "(?:1[0-9]|20)"
_YEAR = rf"(?P<year>{_CENTURY}\d\d)(?![\d,.:]?\d)"
_RULES: tuple[Rule, ...] = (
    _rule(
        rf"{_START}(?P<article>an? )?(?P<sign>[-−])?(?P<currency>[$€£¥])\s?(?P<amount>{_DECIMAL})(?![\d])"
        r"(?:\s(?P<scale>thousand|million|billion|trillion)\b)?",
        _money,
    ),
    _rule(rf"{_START}(?P<year>\d{{4}})-(?P<month>\d{{2}})-(?P<day>\d{{2}})(?![\w-])", _numeric_date),
    _rule(rf"{_START}(?P<month>\d{{1,2}})/(?P<day>\d{{1,2}})/(?P<year>\d{{4}})(?![\w/])", _numeric_date),
    _rule(rf"{_START}(?P<the>the )?{_DAY} (?:of )?{_MONTH_PATTERN}(?:,? {_YEAR})?", _day_of_month),
    _rule(rf"\b{_MONTH_PATTERN} {_DAY}(?![\d:,/]\d|\d|\s?%)(?:,? {_YEAR})?", _day_of_month),
    _rule(rf"\b{_MONTH_PATTERN},? {_YEAR}", _month_and_year),
    _rule(rf"{_START}(?P<hour>\d{{1,2}}):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?![\d:])(?:\s?{_HALF})?", _time),
    _rule(rf"{_START}(?P<hour>\d{{1,2}})(?P<minute>)(?P<second>)\s?{_HALF}", _time),
    _rule(rf"{_START}(?:\d{{3}}-)?\d{{3}}-\d{{4}}(?![\w-])", lambda m: ", ".join(map(digits, m.group().split("-")))),
    _rule(rf"{_START}(?P<number>{_NUMBER})(?:st|nd|rd|th)\b", _ordinal),
    _rule(rf"{_START}(?P<year>\d{{3}}0)'?s\b", _decade),
    _rule(
        rf"{_START}(?P<first>{_CENTURY}\d\d)\s?[-–]\s?(?P<last>{_CENTURY}\d\d)(?![\w-])",
        lambda match: f"{year(int(match['first']))} to {year(int(match['last']))}",
    ),
    _rule(rf"\b(?:from|between) {_CENTURY}\d\d (?:to|and|until) {_CENTURY}\d\d\b{_NOT_PLURAL}", _years),
    _rule(rf"\b(?:in|since|until|before|during|year|circa) {_YEAR}(?!\w){_NOT_PLURAL}", _years),
    _rule(rf"{_START}(?P<above>\d{{1,3}})/(?P<below>\d{{1,3}})(?![\w/])", _fraction),
    _rule(rf"{_START}(?P<left>\d+):(?P<right>\d+)(?![\w:])", lambda m: f"{_value(m['left'])} to {_value(m['right'])}"),
    _rule(
        rf"{_START}\d+(?:\.\d+){{2,}}(?!\w)", lambda m: " point ".join(_value(part) for part in m.group().split("."))
    ),
    _rule(
        rf"{_START}(?P<first>{_DECIMAL})\s?[-–]\s?(?P<last>{_DECIMAL})(?![\w-])",
        lambda m: f"{_value(m['first'])} to {_value(m['last'])}",
    ),
    _rule(
        rf"(?<![\w.])(?P<hash>#)?(?P<sign>(?<![\w)])[-−])?(?P<number>{_DECIMAL})(?:\s?(?P<percent>%))?(?P<letter>(?=[A-Za-z]))?",
        _number,
    ),
)
