"""Work that waits (a probe, a start, a look at all runs): done by a thread, handed back on a tick."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from trainer_backend.errors import GradaccError

Result = TypeVar("Result")


class Background:
    """One worker thread; what it found is delivered by `poll`, in the thread that calls it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gradacc-window")
        self._waiting: list[tuple[Future[object], Callable[[object], None], Callable[[str], None]]] = []
        self._busy: set[str] = set()

    def submit(
        self,
        work: Callable[[], Result],
        done: Callable[[Result], None],
        failed: Callable[[str], None],
        *,
        only_one: str = "",
    ) -> bool:
        """Do `work`; then `done(result)`, or `failed(sentence)` when it raised a GradaccError.

        Work of the same `only_one` that is still under way is not started twice: False.
        """
        if only_one:
            if only_one in self._busy:
                return False
            self._busy.add(only_one)

        def finish(result: object) -> None:
            self._busy.discard(only_one)
            done(result)  # type: ignore[arg-type]  # it is what `work` gave

        def fail(sentence: str) -> None:
            self._busy.discard(only_one)
            failed(sentence)

        self._waiting.append((self._pool.submit(work), finish, fail))
        return True

    def poll(self) -> None:
        """Hand back what is done. An unexpected exception is raised here: it is a defect, not a state."""
        looked = [
            (entry[0].done(), entry) for entry in self._waiting
        ]  # once: it may finish between two looks
        self._waiting = [entry for is_done, entry in looked if not is_done]
        ready = [entry for is_done, entry in looked if is_done]
        for future, done, failed in ready:
            error = future.exception()
            if isinstance(error, GradaccError):
                failed(str(error))
            elif error is not None:
                failed(f"{type(error).__name__}: {error}")
                raise error
            else:
                done(future.result())

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way or not handed back."""
        return bool(self._waiting)

    def close(self) -> None:
        """Forget what is not started; what is under way is waited for."""
        self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
