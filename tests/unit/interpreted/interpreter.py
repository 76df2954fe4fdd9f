"""Lets Triton's interpreter (3.6, 3.7) run under NumPy 2.4, which makes no number of a one-element array any more.

Imported first, before any kernel. Remove it once Triton does this itself.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter


def _patch(tensor: Any, scope: Any) -> None:
    _original(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


_original = interpreter._patch_lang_tensor
interpreter._patch_lang_tensor = _patch
