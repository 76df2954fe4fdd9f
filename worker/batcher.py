"""The loop between the task threads and the synthesizer: open a window, count its attempts, step until it is generated.

The next window opens then, while the synthesizer finishes (decodes) the results of the last. Only the batcher's own
thread touches the synthesizer. Whoever else needs it (to encode a reference voice) passes a function to `call`, which
runs between two steps: an engine's CUDA graphs and memory pool belong to one thread.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from omnivoice.errors import GenerationFailed, OmniVoiceError
from omnivoice.request import SynthesisResult
from worker import metrics
from worker.calls import Call, CallQueue
from worker.closing import CloseReason, close_reason
from worker.entry import Entry, HandedBack, NotStarted, Outcome, Rejected, Synthesized
from worker.jobs.ledger import Claim
from worker.occupancy import Occupancy
from worker.synthesizers import Synthesizer
from worker.window import HUNG_SECONDS, NO_WINDOW, Candidate, WindowLimits, admit, gather

logger = logging.getLogger(__name__)

MAX_FAILURES = 5
"""Steps and calls that may fail in a row before the synthesizer is held to be broken: a lost CUDA context fails all."""

DRAINING = "the worker is draining"

T = TypeVar("T")


class Batcher:
    """Runs entries in windows over one synthesizer, on a thread of its own.

    `start` counts the attempts of a window's claims and says which may run (`Ledger.start`); it may raise, then the
    window is handed back. `on_broken` is called once, with a reason, when the synthesizer does not recover; what comes
    afterwards is handed back.
    """

    def __init__(
        self,
        synthesizer: Synthesizer,
        limits: WindowLimits,
        start: Callable[[list[Claim]], list[bool]],
        on_broken: Callable[[str], None],
        *,
        joins_between_steps: bool = False,
    ) -> None:
        self._synthesizer = synthesizer
        self._limits = limits
        self._start_claims = start
        self._on_broken = on_broken
        self._joins_between_steps = joins_between_steps
        self._changed = threading.Condition()
        # All of the following are guarded by `_changed`, which nobody holds while the synthesizer is called. Only the
        # batcher's thread changes what is in the synthesizer, so it may look at that without the lock.
        self._waiting: list[Entry] = []
        self._inside = Occupancy()
        self._calls = CallQueue()
        self._aborted: set[str] = set()  # request ids of what is in the synthesizer
        self._has_results = False
        self._busy_since: float | None = None
        self._is_draining = False
        self._surrendered: str | None = None
        self._num_failures = 0
        self._close_reason = CloseReason.MAX_WAIT  # of the last window; the batcher's thread alone uses it
        self._thread = threading.Thread(target=self._serve, name="batcher", daemon=True)

    def run(self) -> None:
        """Start the thread. It is a daemon: a step that hangs cannot keep the process from exiting."""
        self._thread.start()

    # --- called from other threads -----------------------------------------------------------------------------------

    def submit(self, entry: Entry) -> Future[Outcome]:
        with self._changed:
            if self._is_draining:
                entry.resolve(HandedBack(DRAINING))
            else:
                self._waiting.append(entry)
                self._changed.notify()
        logger.debug("waits for a window", extra=entry.claim.log_fields)
        return entry.future

    def settle(self, entry: Entry) -> None:
        """The job of an entry that was resolved as `Synthesized` has ended: nothing of it can be lost any more.

        Until then what runs alone waits, for its death would take the audio along that is on its way to the store.
        While an upload hangs, others go before it.
        """
        with self._changed:
            self._inside.settle(entry)
            self._changed.notify()

    def call(
        self,
        function: Callable[[Synthesizer], T],
        *,
        runs_alone: bool = False,
        start: Callable[[], bool] = lambda: True,
    ) -> Future[T]:
        """Run `function` with the synthesizer, between two steps, or when there is nothing that it could take along.

        `start` is asked just before, and may refuse or raise. The future carries what `function` returns, or raises:
        an `OmniVoiceError` and whatever `start` raised as they are, all else as `SynthesizerFailed`; `CallRefused`, and
        `CallHandedBack` from a worker that drains.
        """
        call = Call(function, start, runs_alone)
        with self._changed:
            self._calls.put(call)
            if self._is_draining:
                self._calls.hand_back(DRAINING)
            self._changed.notify()
        return call.future

    def abort(self, claim: Claim) -> None:
        """A waiting entry leaves at once, one in the synthesizer ends at the next step with `RequestAborted`."""
        with self._changed:
            for entry in self._waiting:
                if entry.claim is claim:
                    self._waiting.remove(entry)
                    entry.resolve(NotStarted())
                    return
            self._aborted.update(entry.request_id for entry in self._inside.entries if entry.claim is claim)
            self._changed.notify()

    def drain(self) -> None:
        """Close the open window at once, run what is in it to its end, hand back all others and whoever comes."""
        with self._changed:
            self._is_draining = True
            self._calls.hand_back(DRAINING)
            self._changed.notify()

    def surrender(self, reason: str) -> None:
        """Hand back everything, running and finishing too, without the batcher's thread: it may hang inside a step."""
        with self._changed:
            self._is_draining = True
            self._surrendered = reason
            inside = self._inside.entries
            entries = [*self._waiting, *inside]
            self._waiting.clear()
            self._calls.hand_back(reason)
            self._aborted.update(entry.request_id for entry in inside)
            self._changed.notify()
        for entry in entries:
            entry.resolve(HandedBack(reason))

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not (self._waiting or self._inside or self._calls or self._busy_since is not None)

    @property
    def busy_since(self) -> float | None:
        """Monotonic time since when a call has occupied the synthesizer, or a request in it has not moved."""
        with self._changed:
            times = (self._busy_since, self._inside.stands_since)
            return min((since for since in times if since is not None), default=None)

    def _on_finished(self) -> None:
        """Called by the synthesizer, from a thread of its own."""
        with self._changed:
            self._has_results = True
            self._changed.notify()

    def _on_progress(self) -> None:
        """Called by the synthesizer, from a thread of its own."""
        with self._changed:
            self._inside.note_finishing()

    # --- the batcher's thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._synthesizer.notify_finished(self._on_finished, self._on_progress)
            while True:
                self._loop()
        except Exception as error:
            # A fault of ours. Without the loop every later job would wait for ever with its lease held.
            logger.exception("the batcher stopped")
            self._give_up(error)

    def _loop(self) -> None:
        self._make_calls()
        window = self._next_window()
        if window:
            self._open(window)
        if self._is_step_due():
            self._step()

    def _is_step_due(self) -> bool:
        """Whether a step has something to do: what is finishing needs one only to be collected, or aborted."""
        with self._changed:
            has_news = self._has_results or bool(self._aborted)
            return self._inside.num_running > 0 or (self._inside.num_finishing > 0 and has_news)

    def _make_calls(self) -> None:
        while True:
            with self._changed:
                load = self._inside.load
                is_due = self._calls.has_due(load)
                self._busy_since = time.monotonic() if is_due else None
                if not is_due:
                    return
                call = self._calls.pop_due(load)
            error = call.make(self._synthesizer)
            self._num_failures = self._num_failures + 1 if error else 0
            if error and self._num_failures >= MAX_FAILURES:
                self._give_up(error)
            if self._is_step_due():  # a crowd of new voices must not hold up what runs: one a step
                return

    def _next_window(self) -> list[Entry]:
        """Entries to start now; none where something else is due, or where what runs may have no company."""
        with self._changed:
            members = self._joiners() if self._inside.num_running else self._wait_for_window()
            entries = [self._waiting[index] for index in members]
            if entries:
                self._close_reason = self._reason(members)
                self._busy_since = time.monotonic()
            self._waiting = [entry for entry in self._waiting if entry not in entries]
            if self._is_draining:
                self._hand_back_waiting()
            return entries

    def _reason(self, members: tuple[int, ...]) -> CloseReason:
        return close_reason(
            self._candidates(),
            members,
            self._limits,
            self._inside.load,
            joins_between_steps=self._joins_between_steps,
            is_draining=self._is_draining,
        )

    def _wait_for_window(self) -> tuple[int, ...]:
        """The members of the next window, once it has closed; none where a call or a step is due before."""
        while True:
            load = self._inside.load
            window = gather(self._candidates(), self._limits, load)
            if self._calls.wants_to_be_alone(load):
                window = NO_WINDOW
            remaining = window.closes_at - time.monotonic()
            if window.members and (remaining <= 0 or self._is_draining or self._joins_between_steps):
                return window.members
            if self._calls.has_due(load) or self._is_step_due():
                return ()
            if self._is_draining:
                self._hand_back_waiting()
            # Nobody tells of an upload that it hangs by now: who waits for one looks at it.
            look_seconds = HUNG_SECONDS / 4 if load.num_unsettled and (self._waiting or self._calls) else None
            self._changed.wait(remaining if window.members else look_seconds)

    def _joiners(self) -> tuple[int, ...]:
        """Who joins what runs."""
        load = self._inside.load
        if not self._joins_between_steps or self._is_draining or self._calls.wants_to_be_alone(load):
            return ()
        return admit(self._candidates(), self._limits, load)

    def _candidates(self) -> list[Candidate]:
        return [entry.candidate for entry in self._waiting]

    def _hand_back_waiting(self) -> None:
        for entry in self._waiting:
            entry.resolve(HandedBack(DRAINING))
        self._waiting.clear()

    def _open(self, entries: list[Entry]) -> None:
        closed_at = time.monotonic()
        window = f"win_{secrets.token_hex(8)}"
        members = [entry.candidate for entry in entries]
        metrics.window_closed(self._close_reason, members, closed_at)
        sizes = {"jobs": len(members), "tokens": sum(member.num_tokens for member in members)}
        logger.info("window closed", extra={"window": window, "reason": self._close_reason.value, **sizes})
        try:
            granted = self._start_claims([entry.claim for entry in entries])
        except Exception as error:  # noqa: BLE001  whatever it was, the window must not hang with its leases held
            logger.warning("window not started: %s", error)
            granted = []
            for entry in entries:
                entry.resolve(HandedBack("the ledger could not be reached"))
            entries = []
        for entry, may_run in zip(entries, granted, strict=True):
            if may_run:
                self._add(entry, closed_at, window)
            else:
                entry.resolve(NotStarted())
        with self._changed:
            self._busy_since = None
            self._inside.note_batch_size()

    def _add(self, entry: Entry, closed_at: float, window: str) -> None:
        if self._surrendered is not None:  # while the ledger was asked
            entry.resolve(HandedBack(self._surrendered))
            return
        try:
            self._synthesizer.add_request(entry.request_id, entry.request)
        except OmniVoiceError as error:
            entry.resolve(Rejected(error))
        except Exception as error:
            logger.exception("request not accepted", extra=entry.claim.log_fields)
            entry.resolve(Rejected(GenerationFailed(f"the synthesizer did not accept the request: {error}")))
        else:
            with self._changed:
                self._inside.add(entry, closed_at, window)
            logger.info("started", extra=entry.claim.log_fields | {"window": window})

    def _step(self) -> None:
        with self._changed:
            aborted, self._aborted = self._aborted, set()
            self._has_results = False  # before the step: of what finishes from now on it may see nothing
        try:
            for request_id in aborted:
                self._synthesizer.abort(request_id)
            ended = self._timed_step()
            generated = self._synthesizer.take_generated()
        except Exception as error:
            metrics.BATCHES_FAILED.inc()
            logger.exception("step failed with %d requests", len(self._inside.entries))
            self._recover(error)
            return
        self._num_failures = 0
        with self._changed:
            self._inside.note_step()
            self._inside.finish(generated)
        for request_id, result in ended:
            with self._changed:
                occupant = self._inside.end(request_id)
                self._aborted.discard(request_id)
            if occupant is not None:
                entry, window = occupant.entry, occupant.window
                entry.resolve(Synthesized(result, occupant.closed_at, occupant.batch_size, window))

    def _timed_step(self) -> list[tuple[str, SynthesisResult]]:
        if not self._inside.num_running:  # it only collects what has been finished
            return self._synthesizer.step()
        with metrics.STEP_SECONDS.time():
            return self._synthesizer.step()

    def _recover(self, error: Exception) -> None:
        """After a step that raised: nobody knows whose fault it was, so all are retried, each alone."""
        with self._changed:
            entries = self._inside.clear()
            self._aborted.clear()
        for entry in entries:
            if len(entries) == 1:
                entry.resolve(Rejected(GenerationFailed(f"the synthesizer failed: {error}")))
            else:
                entry.resolve(HandedBack(f"the batch failed: {error}", counts_attempt=True))
        self._num_failures += 1
        if not self._is_swept(entries) or self._num_failures >= MAX_FAILURES:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._surrendered is None:  # a step may fail again while the process ends
            self.surrender("the synthesizer is broken")
            self._on_broken(str(error))

    def _is_swept(self, entries: list[Entry]) -> bool:
        """Remove what the failed step left in the synthesizer: the next window must not step it again."""
        try:
            for entry in entries:
                self._synthesizer.abort(entry.request_id)
            self._synthesizer.step()
        except Exception:
            logger.exception("the synthesizer could not be emptied")
            return False
        return self._synthesizer.num_unfinished == 0
