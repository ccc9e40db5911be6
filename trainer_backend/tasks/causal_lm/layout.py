"""How encoded samples become rows and micro-batches.

Letters: b rows, s tokens of a row.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
from typing import Final, Literal

import torch

from trainer_backend.tasks.causal_lm.encoding import Encoded

IGNORED: Final = -100
"""Target of a token without loss (torch's default `ignore_index`)."""
PACKED_TOGETHER: Final = 16_384
"""Samples that are packed at once: enough of every length, and quick."""
SORTED_TOGETHER: Final = 2048
"""Samples that are sorted by length at once: little padding, still a random order."""


@dataclasses.dataclass
class Rows:
    """A collated micro-batch of token rows."""

    tokens: torch.Tensor
    """int64 (b, s)"""
    targets: torch.Tensor
    """int64 (b, s), already shifted: the token to predict, or IGNORED."""
    weights: torch.Tensor
    """fp32 (b, s): what each target's loss weighs; 0 where it is ignored."""
    positions: torch.Tensor
    """int64 (b, s), from 0 in each sample; padding is a sample of its own in a packed row only."""
    attended: torch.Tensor | None
    """int64 (b, s): 0 on padding; None when packed (positions that restart tell samples apart)."""
    items: int
    """Entries of the data set in this micro-batch."""
    weight: float
    """Sum of `weights`: known on the host, so that no device is waited for."""


class EncodedItems(torch.utils.data.Dataset[list[tuple[torch.Tensor, torch.Tensor]]]):
    """Entries of the data set: one sample, the samples of a packed row, or a group within the budget."""

    uses_randomness = False

    def __init__(self, encoded: Encoded, groups: list[list[int]] | None) -> None:
        self.encoded = encoded
        self.groups = groups

    def __len__(self) -> int:
        return len(self.encoded) if self.groups is None else len(self.groups)

    def __getitem__(self, index: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        chosen = [index] if self.groups is None else self.groups[index]
        return [self.encoded.sample(number) for number in chosen]


def packed_groups(lengths: list[int], longest: int, seed: int) -> list[list[int]]:
    """Rows of at most `longest` tokens by best-fit decreasing, pool by pool of a shuffled order.

    A sample goes where it leaves the least space, long samples first (Johnson 1974): rows are as full as the
    lengths allow. A seed gives the same rows in every epoch and after a restart.
    """
    shuffler = random.Random(seed)  # noqa: S311 - not for secrets
    order = list(range(len(lengths)))
    shuffler.shuffle(order)
    rows: list[list[int]] = []
    for begin in range(0, len(order), PACKED_TOGETHER):
        pool = sorted(order[begin : begin + PACKED_TOGETHER], key=lambda number: -lengths[number])
        spaces: list[tuple[int, int]] = []  # (tokens left, place in `rows`), least first
        for number in pool:
            at = bisect.bisect_left(spaces, (lengths[number], 0))
            left, place = spaces.pop(at) if at < len(spaces) else (longest, len(rows))
            if place == len(rows):
                rows.append([])
            rows[place].append(number)
            bisect.insort(spaces, (left - lengths[number], place))
    shuffler.shuffle(rows)  # else the longest samples come first
    return rows


def budget_groups(lengths: list[int], budget: int, seed: int) -> list[list[int]]:
    """Groups of samples of like length with rows x longest <= budget (one sample at least)."""
    order = list(range(len(lengths)))
    shuffler = random.Random(seed)  # noqa: S311 - not for secrets
    shuffler.shuffle(order)
    groups: list[list[int]] = []
    for begin in range(0, len(order), SORTED_TOGETHER):
        group: list[int] = []
        for number in sorted(order[begin : begin + SORTED_TOGETHER], key=lambda entry: lengths[entry]):
            if group and (len(group) + 1) * lengths[number] > budget:
                groups.append(group)
                group = []
            group.append(number)
        groups.append(group)
    return groups


def collate(
    items: list[list[tuple[torch.Tensor, torch.Tensor]]],
    *,
    pad_token: int,
    packed: bool,
    normalization: Literal["tokens", "samples"],
) -> Rows:
    """Lay items out as rows: an item a row when packed, else a sample a row."""
    rows = items if packed else [[sample] for item in items for sample in item]
    width = max(sum(len(tokens) for tokens, _ in row) for row in rows)
    shape = (len(rows), width)
    tokens_bs = torch.full(shape, pad_token)
    targets_bs = torch.full(shape, IGNORED)
    weights_bs = torch.zeros(shape)
    # Padding of a packed row is a sample of its own: its positions start again at 0. Elsewhere they go on,
    # so that a row is one sample to whoever looks for restarts.
    positions_bs = torch.zeros(shape, dtype=torch.int64)
    attended_bs = torch.zeros(shape, dtype=torch.int64)
    for number, row in enumerate(rows):
        at = 0
        for tokens, has_loss in row:
            end = at + len(tokens)
            tokens_bs[number, at:end] = tokens
            targets_bs[number, at : end - 1] = torch.where(has_loss[1:], tokens[1:], IGNORED)
            count = int(has_loss[1:].sum())
            each = 1.0 if normalization == "tokens" else 1.0 / max(count, 1)
            weights_bs[number, at : end - 1] = has_loss[1:] * each
            positions_bs[number, at:end] = torch.arange(len(tokens))
            attended_bs[number, at:end] = 1
            at = end
        positions_bs[number, at:] = torch.arange(width - at) if packed else torch.arange(at, width)
    attended = None if packed else attended_bs
    return Rows(
        tokens_bs, targets_bs, weights_bs, positions_bs, attended, len(items), weight=weight_of(weights_bs)
    )


def weight_of(weights_bs: torch.Tensor) -> float:
    """A micro-batch's denominator, exactly."""
    return float(weights_bs.sum(dtype=torch.float64))


def split_rows(rows: Rows, parts: int) -> list[Rows]:
    """Cut a micro-batch by rows; fewer parts come back when there are fewer rows."""
    pieces = []
    begin = 0
    left = rows.items
    count = rows.tokens.shape[0]
    parts = min(parts, count)
    for number in range(parts):
        end = begin + (count - begin) // (parts - number)
        items = left * (end - begin) // (count - begin)
        left -= items
        cut = slice(begin, end)
        pieces.append(
            Rows(
                rows.tokens[cut],
                rows.targets[cut],
                rows.weights[cut],
                rows.positions[cut],
                None if rows.attended is None else rows.attended[cut],
                items,
                weight=weight_of(rows.weights[cut]),
            )
        )
        begin = end
    return pieces
