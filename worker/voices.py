"""Reference voices: fetched from the object store, encoded by the synthesizer once, then remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from omnivoice.request import VoicePrompt

MAX_VOICES = 256
"""A prompt of 30 s holds 8 · 750 codes of 8 bytes: 48 kB."""


class VoiceKey(NamedTuple):
    """What a prompt depends on. The reference's object key names its content, so the clip is not fetched to know it."""

    reference_key: str
    ref_text: str
    preprocess: bool


class VoiceCache:
    """The most recently used prompts. Of several tasks that want a new one, one encodes it and the others wait."""

    def __init__(self, encode: Callable[[VoiceKey], VoicePrompt], max_voices: int = MAX_VOICES) -> None:
        self._encode = encode
        self._max_voices = max_voices
        self._lock = threading.Lock()
        self._prompts: OrderedDict[VoiceKey, Future[VoicePrompt]] = OrderedDict()

    def get(self, key: VoiceKey) -> VoicePrompt:
        """Raises what `encode` raises; a failure is not remembered."""
        with self._lock:
            known = self._prompts.get(key)
            if known is None:
                mine: Future[VoicePrompt] = Future()
                self._prompts[key] = mine
            else:
                self._prompts.move_to_end(key)
            while len(self._prompts) > self._max_voices:
                self._prompts.popitem(last=False)
        return known.result() if known is not None else self._fill(key, mine)

    def _fill(self, key: VoiceKey, future: Future[VoicePrompt]) -> VoicePrompt:
        try:
            prompt = self._encode(key)
        except BaseException as error:
            with self._lock:
                if self._prompts.get(key) is future:
                    del self._prompts[key]
            future.set_exception(error)
            raise
        future.set_result(prompt)
        return prompt
