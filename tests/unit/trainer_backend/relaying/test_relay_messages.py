"""What goes over a line comes out of it as it was, in whatever pieces it arrives."""

from __future__ import annotations

import math
import zlib

import pytest

from trainer_backend.relaying.relay_messages import (
    FORMAT,
    LARGEST_FRAME,
    LARGEST_GREETING,
    MARK,
    AnyMessage,
    Events,
    FarStanding,
    FrameReader,
    Hello,
    LineGarbledError,
    LogText,
    RecipeText,
    frame,
    rows_for_sql,
)

MESSAGES: list[AnyMessage] = [
    Hello(format=FORMAT, version="1", run="a", path="/a", host="h", origin="", head=3),
    Events(
        last=3, rows={"HostSampled": [(1, 1, 0.5, math.inf, None, "NaN")]}, facts=[(2, 1, 0.5, "T", "{}")]
    ),
    FarStanding(alive=True, holder=b"12\n", head=3),
    RecipeText(content='[run]\nname = "ü"\n'.encode()),
    LogText(begins=True, content=b"\xff\x00"),
]


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_messages_arrive_whole_however_the_line_cuts_them(size: int) -> None:
    """Behind whatever the far shell greeted with."""
    data = b"Welcome!\r\n" + MARK + b"".join(map(frame, MESSAGES))
    reader = FrameReader()
    found: list[AnyMessage] = []
    for begin in range(0, len(data), size):
        found += reader.take(data[begin : begin + size])
    assert found == MESSAGES


@pytest.mark.parametrize(
    "data",
    [
        b"x" * (LARGEST_GREETING + 1),
        MARK + (LARGEST_FRAME + 1).to_bytes(4, "big"),
        MARK + (3).to_bytes(4, "big") + b"abc",
        MARK + len(zlib.compress(b"\xc1")).to_bytes(4, "big") + zlib.compress(b"\xc1"),
    ],
    ids=["no relay", "too long", "no zlib", "no message"],
)
def test_what_no_relay_says_is_refused(data: bytes) -> None:
    """In a sentence; never taken for events."""
    with pytest.raises(LineGarbledError, match=r"far machine"):
        FrameReader().take(data)


def test_rows_without_a_number_or_of_unlike_lengths_are_refused() -> None:
    """They could not be placed in a journal."""
    assert rows_for_sql([(1, 2.0), (2, None)]) == [(1, 2.0), (2, None)]
    for rows in ([("1", 2.0)], [(1, 2.0), (2,)], [()]):
        with pytest.raises(LineGarbledError):
            rows_for_sql(rows)  # type: ignore[arg-type]  # as another machine may send them
