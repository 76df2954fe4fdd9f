"""Two threads that do the halves of one step, where torch's own threads cost more than they gain.

torch divides every operation among its threads and waits at the end of each. At the sizes of a small model an operation
is over before a thread that sleeps is awake, and one that does not sleep takes a processor from everybody else. Halves
of a whole step wait for each other a few times a step, asleep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import torch


class Team:
    """The calling thread, or that and another; `size` is 1 or 2. One thread at a time uses it."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._other = None
        if size == 2:
            self._other = ThreadPoolExecutor(1, thread_name_prefix="team", initializer=set_threads, initargs=(1,))

    @classmethod
    def of_threads(cls, threads: int) -> Team:
        """Return the team for so many of torch's threads; more than two are left to torch."""
        return cls(2 if threads == 2 else 1)

    @contextmanager
    def led(self) -> Iterator[None]:
        """Have the caller of a team of two use one of torch's threads, as the other does, until this is left.

        So does any thread that torch meets meanwhile, unless it says otherwise (`set_threads`).
        """
        if self.size == 1:
            yield
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def run(self, work: Callable[[int, Callable[[], None]], None]) -> None:
        """Call `work(part, meet)` for every part below `size` at the same time; raise what the first part raised.

        In `work`, `meet()` waits until the other part has called it as often. Where a part raises, the other's next
        `meet` does too. All have ended when this returns or raises.
        """
        if self._other is None:
            work(0, lambda: None)
            return
        inboxes = SimpleQueue[bool](), SimpleQueue[bool]()
        other = self._other.submit(_half, work, 1, inboxes)
        try:
            _half(work, 0, inboxes)
        except _OtherFailed:
            pass  # and raises what it did below
        except BaseException:
            other.exception()
            raise
        other.result()


class _OtherFailed(Exception):
    """Nobody is left to meet."""


@torch.inference_mode()
def _half(
    work: Callable[[int, Callable[[], None]], None], part: int, inboxes: tuple[SimpleQueue[bool], SimpleQueue[bool]]
) -> None:
    mine, others = inboxes[part], inboxes[1 - part]

    def meet() -> None:
        others.put(True)
        if not mine.get():
            raise _OtherFailed

    try:
        work(part, meet)
    except BaseException:
        others.put(False)
        raise


def threads_each(threads: int) -> int:
    """How many of torch's threads each thread beside the steps uses, out of so many in all.

    Where two threads of a process each have torch's threads, these outnumber two processors, and torch has them sleep.
    """
    return 1 if threads == 2 else threads


def set_threads(threads: int) -> None:
    """Have the calling thread use this many of torch's; a thread that torch has not met yet would forget it."""
    torch.get_num_threads()
    torch.set_num_threads(threads)
