"""How many samples each micro-batch gets: equal parts, ragged parts, an epoch's tail."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def equal(total: int, parts: int) -> tuple[int, ...]:
    """`total` in `parts` sizes that differ by at most one.

    >>> equal(16, 3)
    (5, 5, 6)
    """
    edges = [total * part // parts for part in range(parts + 1)]
    return tuple(high - low for low, high in itertools.pairwise(edges))


def ragged(total: int, parts: int, smallest: int = 1) -> tuple[int, ...]:
    """`total` in `parts` unequal sizes: of each two neighbours the first takes half of the second's.

    >>> ragged(16, 4)
    (6, 2, 6, 2)
    """
    sizes = list(equal(total, parts))
    for index in range(0, parts - 1, 2):
        moved = min(sizes[index + 1] // 2, sizes[index + 1] - smallest)
        if moved > 0:
            sizes[index] += moved
            sizes[index + 1] -= moved
    return tuple(sizes)


def tail(total: int, steps: int) -> tuple[int, ...]:
    """A window of an epoch's end: fewer micro-batches than N.

    >>> tail(16, 4)
    (5, 5, 6)
    """
    return equal(total, max(1, steps - 1))


def usable_steps(total: int, steps: Sequence[int], smallest: int) -> tuple[list[int], list[int]]:
    """The N that the samples suffice for, and those that they do not."""
    wanted = sorted({step for step in steps if step > 1})
    return (
        [step for step in wanted if total // step >= smallest],
        [step for step in wanted if total // step < smallest],
    )
