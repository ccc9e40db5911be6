"""What the two ends of a line say to each other: a run's rows one way, commands the other. Pure.

    far    MARK, then frames: the length in four bytes, big-endian; then a message, msgpack in zlib
    near   commands, one JSON object a line; the end of the stream ends the relay

A shell may greet before the far side speaks, so all that comes before MARK is passed over.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, TypeAlias

import msgspec

from trainer_backend.errors import GradaccError

FORMAT: Final = 1
"""Of what is said here; counted up with every change."""
MARK: Final = b"\0gradacc-relay\n"
HEAD_BYTES: Final = 4
LARGEST_FRAME: Final = 32 * 1024 * 1024
LARGEST_MESSAGE: Final = 256 * 1024 * 1024
LARGEST_GREETING: Final = 256 * 1024
FAST: Final = 1
"""zlib's quickest level: a line is slower than that, and rows shrink to a third."""

Row: TypeAlias = tuple[int | float | str | None, ...]


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message."""

    format: int
    version: str
    """Of gradacc."""
    run: str
    """The run's id."""
    path: str
    """Its directory on the far machine."""
    host: str
    origin: str
    """What tells this journal from another; empty while it has no fact."""
    head: int
    """The newest event's number."""


class Events(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rows of the journal up to number `last`, as they lie in its tables."""

    last: int
    rows: dict[str, list[Row]]
    """Of each measurement, by its name."""
    facts: list[Row]


class FarStanding(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Whether a trainer holds the run's lock. Said when it changes, and every second."""

    alive: bool
    holder: bytes
    """What the lock's file says."""
    head: int
    """The newest event's number when it was looked."""


class RecipeText(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The run's recipe.toml; said again when it changes."""

    content: bytes


class LogText(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A piece of the run's trainer.log."""

    begins: bool
    """Whether it begins anew: what came before is no part of it."""
    content: bytes


AnyMessage: TypeAlias = Hello | Events | FarStanding | RecipeText | LogText
_decoder = msgspec.msgpack.Decoder(AnyMessage)


class LineGarbledError(GradaccError):
    """What comes over a line is not what a relay says."""


def frame(message: AnyMessage) -> bytes:
    """A message as it goes over the line."""
    packed = zlib.compress(msgspec.msgpack.encode(message), FAST)
    return len(packed).to_bytes(HEAD_BYTES, "big") + packed


class FrameReader:
    """Makes messages of bytes, however they come in pieces."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._has_begun = False

    def take(self, data: bytes) -> list[AnyMessage]:
        """The messages that `data` completes. Raises LineGarbledError."""
        self._held += data
        if not self._has_begun and not self._find_mark():
            return []
        found: list[AnyMessage] = []
        while (message := self._next()) is not None:
            found.append(message)
        return found

    def _find_mark(self) -> bool:
        at = self._held.find(MARK)
        if at < 0:
            if len(self._held) > LARGEST_GREETING:
                raise LineGarbledError("The far machine sends something else than a run's events.")
            return False
        del self._held[: at + len(MARK)]
        self._has_begun = True
        return True

    def _next(self) -> AnyMessage | None:
        if len(self._held) < HEAD_BYTES:
            return None
        length = int.from_bytes(self._held[:HEAD_BYTES], "big")
        if length > LARGEST_FRAME:
            raise LineGarbledError(f"The far machine announces a message of {length:,} bytes.")
        if len(self._held) < HEAD_BYTES + length:
            return None
        packed = bytes(self._held[HEAD_BYTES : HEAD_BYTES + length])
        del self._held[: HEAD_BYTES + length]
        return _unpacked(packed)


def _unpacked(packed: bytes) -> AnyMessage:
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(packed, LARGEST_MESSAGE)
        if unpacking.unconsumed_tail:
            raise LineGarbledError("The far machine sent a message that is too large.")
        return _decoder.decode(content)
    except (zlib.error, msgspec.DecodeError) as error:
        raise LineGarbledError(f"What came from the far machine cannot be read: {error}.") from error


def rows_for_sql(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Rows for SQLite, of one length each, in the order of their numbers. Raises LineGarbledError."""
    numbers = [row[0] if row else None for row in rows]
    if any(type(number) is not int for number in numbers) or len({len(row) for row in rows}) > 1:
        raise LineGarbledError("Rows came from the far machine that no journal has.")
    return list(rows)
