"""The voice cache: one encoding a voice, however many jobs want it at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from omnivoice.errors import InvalidRequest
from omnivoice.request import VoicePrompt
from worker.voices import VoiceCache, VoiceKey


def prompt_of(key: VoiceKey) -> VoicePrompt:
    return VoicePrompt(np.zeros((8, 25), dtype=np.int64), key.ref_text)


def test_many_tasks_at_once_encode_a_voice_once() -> None:
    calls: list[VoiceKey] = []
    all_ask = threading.Barrier(8)

    def encode(key: VoiceKey) -> VoicePrompt:
        calls.append(key)
        return prompt_of(key)

    cache = VoiceCache(encode)

    def ask(_: int) -> VoicePrompt:
        all_ask.wait(10)
        return cache.get(VoiceKey("references/a", "Hello.", True))

    with ThreadPoolExecutor(8) as pool:
        prompts = list(pool.map(ask, range(8)))
    assert len(calls) == 1
    assert all(prompt is prompts[0] for prompt in prompts)


def test_transcript_and_preprocessing_are_part_of_a_voice() -> None:
    cache = VoiceCache(prompt_of)
    keys = [VoiceKey("references/a", text, flag) for text in ("Hello.", "Bye.") for flag in (True, False)]
    assert len({id(cache.get(key)) for key in keys}) == 4
    assert cache.get(keys[0]).ref_text == "Hello."


def test_failure_is_told_and_not_remembered() -> None:
    answers = iter([InvalidRequest("ref_audio", "is silent"), None])

    def encode(key: VoiceKey) -> VoicePrompt:
        if error := next(answers):
            raise error
        return prompt_of(key)

    cache = VoiceCache(encode)
    key = VoiceKey("references/a", "Hello.", True)
    with pytest.raises(InvalidRequest):
        cache.get(key)
    assert cache.get(key).ref_text == "Hello."


def test_least_recently_used_voice_is_forgotten_first() -> None:
    calls: list[str] = []

    def encode(key: VoiceKey) -> VoicePrompt:
        calls.append(key.reference_key)
        return prompt_of(key)

    cache = VoiceCache(encode, max_voices=2)
    for name in ("a", "b", "a", "c", "a", "b"):
        cache.get(VoiceKey(name, "Hello.", True))
    assert calls == ["a", "b", "c", "b"]
