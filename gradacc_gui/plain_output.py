"""What the command line prints of others' texts gives a terminal no commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from trainer_backend.plain_text import plain


class PlainStream:
    """A stream that escapes control characters; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write, escaped; gives the number of characters that were asked for."""
        self.stream.write(plain(text))
        return len(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 - as io has it
        """Write each of several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's own
        return getattr(self.stream, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Inside, stdout and stderr are plain streams, where there are any."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_plain(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _plain(stream: Any) -> Any:  # noqa: ANN401 - None where there is no console
    return stream if stream is None or isinstance(stream, PlainStream) else PlainStream(stream)


def beneath(stream: Any) -> Any:  # noqa: ANN401 - as `_plain`
    """The stream that takes commands, for who draws on a terminal."""
    return stream.stream if isinstance(stream, PlainStream) else stream
