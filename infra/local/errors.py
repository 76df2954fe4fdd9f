"""The one error of the local stack."""

from __future__ import annotations


class LocalError(Exception):
    """Something on this machine stands in the way; the text is one line that names it and what to do."""
