"""What every rank tells the others after an attempt at a window: one vector, one all-reduce.

    [weights of 16 terms | totals of 16 terms | samples, tokens]  [rank 0's report and more] [rank 1's] ...

A rank fills the sums and its own report and leaves the others' at 0, so the sum over ranks is both the sums
and all reports.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, TypeAlias

from trainer_backend.engine.denominators import MAX_TERMS
from trainer_backend.engine.ranks import Ranks

Outcome: TypeAlias = Literal["done", "again", "forward", "backward", "raised"]
"""How an attempt ended: well; the window must start again; out of memory there; with an exception."""
OUTCOMES: Final[tuple[Outcome, ...]] = ("done", "again", "forward", "backward", "raised")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One rank's attempt at a window. All numbers, exact in fp64."""

    outcome: int
    """A place in OUTCOMES."""
    ceiling: int = 0
    """Samples that a micro-batch may have, where memory ran out."""
    least_c: float = 0.0
    """What c must be at least, after a weight that was too large for fp16."""
    next_c: float = 0.0
    """What this rank would choose for c, by its first weight; 0 without one."""
    has_new_names: bool = False
    """Whether its terms are others, or in another order, than those agreed on."""
    own_terms: int = 0
    """Bits: terms with a buffer of their own."""
    micro_batches: int = 0
    largest: int = 0
    """Samples of its largest micro-batch."""
    computed_s: float = 0.0
    """From the attempt's start until its own micro-batches were through."""
    waited_s: float = 0.0
    """From then until the gradients of all ranks were summed."""
    new_buffers: int = 0
    """Buffers of the model that changed and that the ranks have not agreed to average."""


FIELDS: Final = tuple(field.name for field in dataclasses.fields(Report))
_REAL: Final = frozenset({"least_c", "next_c", "computed_s", "waited_s"})
HEAD: Final = 2 * MAX_TERMS + 2
"""Numbers before the first report."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The same on all ranks."""

    weights: list[float]
    totals: list[float]
    samples: int
    tokens: int
    reports: tuple[Report, ...]
    """By rank."""
    brought: tuple[list[float], ...]
    """What else each rank told, by rank."""

    def is_any(self, *outcomes: Outcome) -> bool:
        """Whether some rank's attempt ended so."""
        return any(OUTCOMES[report.outcome] in outcomes for report in self.reports)

    @property
    def ceiling(self) -> int:
        """The smallest ceiling of the ranks that ran out of memory."""
        return min(report.ceiling for report in self.reports if report.ceiling)

    @property
    def own_terms(self) -> set[int]:
        """Terms that need a buffer of their own on some rank."""
        return {
            term for term in range(MAX_TERMS) if any(report.own_terms >> term & 1 for report in self.reports)
        }

    @property
    def misses_own_terms(self) -> bool:
        """Whether some rank has put into `.grad` what another has in a buffer of its own."""
        own = sum(1 << term for term in self.own_terms)
        return any(own & ~report.own_terms and report.micro_batches for report in self.reports)

    @property
    def next_c(self) -> float:
        """The c of the window to come; 0 where no rank had a weight."""
        return max(report.next_c for report in self.reports)


def exchange(
    ranks: Ranks, report: Report, weights: list[float], totals: list[float], samples: int, tokens: int
) -> Agreement:
    """Tell the others, and hear them. Collective."""
    own = [*(float(getattr(report, name)) for name in FIELDS), *ranks.bring()]
    vector = [*_padded(weights), *_padded(totals), float(samples), float(tokens)]
    many = len(own)
    vector += [*[0.0] * (many * ranks.rank), *own, *[0.0] * (many * (ranks.size - 1 - ranks.rank))]
    told = ranks.sum(vector)
    head, tail = told[:HEAD], told[HEAD:]
    parts = [tail[place : place + many] for place in range(0, len(tail), many)]
    return Agreement(
        weights=head[:MAX_TERMS],
        totals=head[MAX_TERMS : 2 * MAX_TERMS],
        samples=int(head[-2]),
        tokens=int(head[-1]),
        reports=tuple(_report(part[: len(FIELDS)]) for part in parts),
        brought=tuple(part[len(FIELDS) :] for part in parts),
    )


def _padded(values: list[float]) -> list[float]:
    return [*values, *[0.0] * (MAX_TERMS - len(values))]


def _report(numbers: list[float]) -> Report:
    named = dict(zip(FIELDS, numbers, strict=True))
    return Report(**{name: value if name in _REAL else int(value) for name, value in named.items()})  # type: ignore[arg-type]
