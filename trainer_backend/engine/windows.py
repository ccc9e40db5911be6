"""Cutting a stream of batches into windows, for loops of one's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from trainer_backend.errors import GradaccError
from trainer_backend.tasks import Batch


def windows(
    batches: Iterable[Batch], steps: int | Callable[[], int], *, tail: Literal["step", "drop"] = "step"
) -> Iterator[Iterable[Batch]]:
    """The batches of one epoch in windows of N = `steps`, each to be used up before the next.

    `steps` may be a function: it is asked once, at each window's start, so N can change in between.
    No length is needed. The last window may be shorter: "step" gives it, "drop" leaves it out. To
    carry it on into the next epoch, chain the epochs: `windows(itertools.chain(first, second), 4)`.
    """
    source = iter(batches)
    while True:
        many = steps() if callable(steps) else steps
        if many < 1:
            message = f"A window needs at least 1 micro-batch; gradient accumulation steps is {many}."
            raise GradaccError(message)
        if tail == "drop":
            window = list(itertools.islice(source, many))
            if len(window) < many:
                return
            yield window
            continue
        for first in source:
            rest = itertools.islice(source, many - 1)
            yield itertools.chain([first], rest)
            for _ in rest:
                raise GradaccError(
                    "A window was left before its last batch was used; windows must be used up."
                )
            break
        else:
            return
