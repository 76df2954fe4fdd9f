"""Numbers in English words, as `normalize_text` and the training texts spell them: American, hyphens, no "and"."""

from __future__ import annotations

# fmt: off
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
_SCALES = ("", " thousand", " million", " billion", " trillion")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MAX_DIGITS = 15
"""Longer numbers have no words here: they are read digit by digit."""


def cardinal(number: int) -> str:
    """2345 → "two thousand three hundred forty-five". Raises `ValueError` below 0 and for more than 15 digits."""
    if not 0 <= number < 10**MAX_DIGITS:
        raise ValueError(f"only whole numbers of up to {MAX_DIGITS} digits have words")
    if number == 0:
        return _ONES[0]
    groups = []
    for scale in _SCALES:
        number, group = divmod(number, 1000)
        if group:
            groups.append(_below_thousand(group) + scale)
    return " ".join(reversed(groups))


def ordinal(number: int) -> str:
    """21 → "twenty-first". Raises `ValueError` as `cardinal` does."""
    words = cardinal(number)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    if last in _ORDINALS:
        return words[:cut] + _ORDINALS[last]
    return words[:cut] + (last[:-1] + "ie" if last.endswith("y") else last) + "th"


def year(number: int) -> str:
    """A year from 1000 to 2099 as it is said: 1984 → "nineteen eighty-four"; any other is a cardinal."""
    century, rest = divmod(number, 100)
    if not 1000 <= number < 2100 or 2000 <= number < 2010 or number == 1000:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {f'oh {cardinal(rest)}' if rest < 10 else cardinal(rest)}"


def digits(characters: str) -> str:
    """ "007" → "zero zero seven"."""
    return " ".join(_ONES[int(character)] for character in characters)


def clock(hour: int, minute: int) -> str:
    """(7, 45) → "seven forty-five", (9, 5) → "nine oh five", (8, 0) → "eight o'clock"."""
    if minute == 0:
        return f"{cardinal(hour)} o'clock" if 1 <= hour <= 12 else f"{cardinal(hour)} hundred hours"
    return f"{cardinal(hour)} {f'oh {cardinal(minute)}' if minute < 10 else cardinal(minute)}"


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [f"{_ONES[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(f"{_TENS[tens]}-{_ONES[ones]}" if ones else _TENS[tens])
    elif rest:
        words.append(_ONES[rest])
    return " ".join(words)
