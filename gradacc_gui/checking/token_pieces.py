"""A row of tokens as pieces to draw: words, special tokens, and gaps for what is left out. No Qt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from trainer_backend.preflight.findings import TokenRow

PieceKind: TypeAlias = Literal["text", "special", "gap"]
LONGEST_PROMPT: Final = 160
"""Characters of a stretch without loss that are shown whole."""
LONGEST_ANSWER: Final = 420
"""Likewise of one that is learnt."""
LEAST_GAP: Final = 60
"""Characters; less is not worth leaving out."""
KEPT_BEGIN, KEPT_END = 0.6, 0.3
"""Of a longer one, which parts of the above stay."""


class ShownToken(msgspec.Struct, frozen=True, kw_only=True):
    """One token, or a gap of several."""

    kind: PieceKind
    text: str
    weight: float = 0.0
    """Of its loss; of a gap, of its first token."""
    place: int = 0
    """Of its (first) token in the row."""
    count: int = 1
    outside: bool = False
    """Its id is beyond the model's embedding."""

    @property
    def is_learnt(self) -> bool:
        """Whether its loss counts."""
        return self.weight > 0


def pieces_of(row: TokenRow, *, shortened: bool) -> list[ShownToken]:
    """The pieces of a row, long stretches of one kind cut in their middle where that is asked."""
    special, outside = frozenset(row.special), frozenset(row.outside)
    pieces = [
        ShownToken(
            kind="special" if place in special or place in outside else "text",
            text=text,
            weight=weight,
            place=place,
            outside=place in outside,
        )
        for place, (text, weight) in enumerate(zip(row.texts, row.weights, strict=True))
    ]
    if not shortened:
        return pieces
    return [piece for stretch in _stretches(pieces) for piece in _shortened(stretch)]


def _stretches(pieces: Sequence[ShownToken]) -> Iterator[list[ShownToken]]:
    """Runs of plain tokens that are all learnt or all not; a special token is a run of its own."""
    run: list[ShownToken] = []
    for piece in pieces:
        is_other = run and (piece.is_learnt != run[0].is_learnt or run[0].kind == "special")
        if run and (is_other or piece.kind == "special"):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _shortened(stretch: list[ShownToken]) -> list[ShownToken]:
    longest = LONGEST_ANSWER if stretch[0].is_learnt else LONGEST_PROMPT
    if sum(len(piece.text) for piece in stretch) <= longest:
        return stretch
    first = _fitting(stretch, longest * KEPT_BEGIN)
    last = len(stretch) - _fitting(stretch[::-1], longest * KEPT_END)
    if sum(len(piece.text) for piece in stretch[first:last]) < LEAST_GAP:
        return stretch
    cut = stretch[first]
    gap = ShownToken(kind="gap", text="", weight=cut.weight, place=cut.place, count=last - first)
    return [*stretch[:first], gap, *stretch[last:]]


def _fitting(pieces: Sequence[ShownToken], characters: float) -> int:
    """How many of the first pieces have so many characters in all."""
    total = 0
    for count, piece in enumerate(pieces):
        total += len(piece.text)
        if total > characters:
            return count
    return len(pieces)


class StripPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a row, for the strip that shows where its loss lies."""

    begin: int
    end: int
    kind: Literal["prompt", "learnt", "outside"]


def strip_of(row: TokenRow) -> list[StripPart]:
    """The parts of a row in order."""
    outside = frozenset(row.outside)
    found: list[StripPart] = []
    for place, weight in enumerate(row.weights):
        kind: Literal["prompt", "learnt", "outside"] = (
            "outside" if place in outside else "learnt" if weight > 0 else "prompt"
        )
        if found and found[-1].kind == kind:
            found[-1] = StripPart(begin=found[-1].begin, end=place + 1, kind=kind)
        else:
            found.append(StripPart(begin=place, end=place + 1, kind=kind))
    return found


def learnt_count(row: TokenRow) -> int:
    """Tokens with a loss."""
    return sum(1 for weight in row.weights if weight > 0)


def shown(text: str) -> str:
    """A token's text with its line ends and tabs visible."""
    return text.replace("\r", "").replace("\n", "↵").replace("\t", "→ ")
