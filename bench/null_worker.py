"""The worker around a synthesizer that takes no time: what is left is the queue.

python -m bench.null_worker --audio-seconds 4.16 [--keep-nothing]

Everything else is the product's own: Celery consumer, ledger, batcher, encoding of files, upload. Settings are those of
`python -m worker`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

import numpy as np

from omnivoice.errors import RequestAborted
from omnivoice.parameters import SAMPLE_RATE
from omnivoice.request import SynthesisRequest, SynthesisResult, Timings, VoicePrompt, Waveform
from worker import metrics
from worker.__main__ import SWITCH_INTERVAL_SECONDS
from worker.app import Worker
from worker.jobs.settings import Settings
from worker.jobs.startup import check_redis, check_storage
from worker.jobs.storage import ObjectStore
from worker.logs import logs_of_a_start

AMPLITUDE = 0.3
NO_TIME = Timings(generated_ms=0.0, decoded_ms=0.0)


class NullSynthesizer:
    """Every request ends in the next step, with one and the same waveform of noise (float32, 24 kHz)."""

    sample_rate = SAMPLE_RATE

    def __init__(self, audio_seconds: float) -> None:
        num_samples = max(1, round(audio_seconds * SAMPLE_RATE))
        noise = np.random.default_rng(0).uniform(-AMPLITUDE, AMPLITUDE, num_samples)
        self._waveform: Waveform = noise.astype(np.float32)
        self._requests: dict[str, SynthesisRequest] = {}
        self._aborted: set[str] = set()

    @property
    def num_unfinished(self) -> int:
        return len(self._requests)

    def add_request(self, request_id: str, request: SynthesisRequest) -> None:
        self._requests[request_id] = request

    def step(self) -> list[tuple[str, SynthesisResult]]:
        requests, self._requests = self._requests, {}
        aborted, self._aborted = self._aborted, set()
        return [(name, self._result(request, len(requests), name in aborted)) for name, request in requests.items()]

    def _result(self, request: SynthesisRequest, batch_size: int, is_aborted: bool) -> SynthesisResult:
        seed = request.seed or 0
        if is_aborted:
            return SynthesisResult(seed, error=RequestAborted("the request was aborted"), batch_size=batch_size)
        return SynthesisResult(seed, waveform=self._waveform, timings=NO_TIME, batch_size=batch_size)

    def take_generated(self) -> list[str]:
        return []

    def notify_finished(
        self, callback: Callable[[], None] | None, on_progress: Callable[[], None] | None = None
    ) -> None:
        """Nothing is ever finished beside the steps."""

    def abort(self, request_id: str) -> None:
        if request_id in self._requests:
            self._aborted.add(request_id)

    def encode_voice(self, waveform: Waveform, sample_rate: int, ref_text: str, preprocess: bool = True) -> VoicePrompt:
        raise NotImplementedError("jobs of this benchmark have no reference voice")


class NullStore(ObjectStore):
    """Takes every object and keeps none."""

    def put(self, key: str, data: bytes, content_type: str, sha256: str | None = None) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audio-seconds", type=float, default=4.16, help="of every result; 4.16 s are a WAV of 200 kB")
    parser.add_argument("--keep-nothing", action="store_true", help="upload nothing")
    arguments = parser.parse_args()
    settings = Settings.from_environment(os.environ)
    with logs_of_a_start(settings.log_level):
        check_redis(settings)
        check_storage(settings)
        metrics.serve(settings)
        store = NullStore(settings) if arguments.keep_nothing else ObjectStore(settings)
        worker = Worker(settings, NullSynthesizer(arguments.audio_seconds), store)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
