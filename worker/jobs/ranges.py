"""Which numbers a field takes, in words: pydantic tells only the bound that was missed."""

from __future__ import annotations

from pydantic.fields import FieldInfo

from omnivoice.parameters import Bounds


def numbers_of(field: FieldInfo) -> str | None:
    """ "a whole number from 1 to 128", or None for a field that is not bounded on both sides."""
    bounds = {
        name: getattr(constraint, name)
        for constraint in field.metadata
        for name in ("gt", "ge", "le")
        if hasattr(constraint, name)
    }
    match bounds:
        case {"ge": low, "le": high}:
            span = str(Bounds(low, high))
        case {"gt": low, "le": high}:
            span = f"more than {low} and at most {high}"
        case _:
            return None
    return ("a whole number " if field.annotation in (int, int | None) else "a number ") + span
