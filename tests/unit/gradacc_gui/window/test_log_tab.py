"""trainer.log as it grows."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.run.log_tail import (
    LONGEST_LINE,
    MOST_BEHIND_BYTES,
    MOST_LINES,
    TAIL_BYTES,
    Tail,
    clean,
    clean_and_short,
)
from gradacc_gui.window.log_tab import LogTab


def test_colours_and_rewritten_lines_come_out_clean() -> None:
    """A progress bar keeps its last state; escapes are gone."""
    assert clean("\x1b[31mred\x1b[0m\r\n 10%\r 50%\r100%\nend\x07") == "red\n100%\nend"


def test_the_tail_gives_each_piece_once_and_holds_half_lines_back(tmp_path: Path) -> None:
    """A line that is still being written waits until the file rests."""
    path = tmp_path / "trainer.log"
    tail = Tail(path)
    assert tail.read() == ("", False)
    path.write_text("one\ntw")
    assert tail.read() == ("one\n", True)
    with path.open("a") as file:
        file.write("o\n")
    assert tail.read() == ("two\n", False)
    assert tail.read() == ("", False)
    with path.open("a") as file:
        file.write("no newline")
    assert tail.read() == ("", False)
    assert tail.read() == ("no newline", False)


def test_a_long_log_begins_near_its_end(tmp_path: Path) -> None:
    """A gigabyte of output costs no more than its last 256 KiB."""
    path = tmp_path / "trainer.log"
    path.write_text("".join(f"line {number}\n" for number in range(60_000)))
    tail = Tail(path)
    text, start_over = tail.read()
    assert start_over
    assert tail.skipped_bytes == path.stat().st_size - TAIL_BYTES
    assert text.endswith("line 59999\n")
    assert text.startswith("line ")
    assert len(text) <= TAIL_BYTES


def test_a_log_that_was_cut_starts_over(tmp_path: Path) -> None:
    """Rotated or truncated: what is there now is shown."""
    path = tmp_path / "trainer.log"
    path.write_text("a long first log\n")
    tail = Tail(path)
    tail.read()
    path.write_text("new\n")
    assert tail.read() == ("new\n", True)


def test_what_is_printed_faster_than_it_is_read_is_skipped(tmp_path: Path) -> None:
    """The newest is shown at once, and not a minute later."""
    path = tmp_path / "trainer.log"
    path.write_text("first\n")
    tail = Tail(path)
    tail.read()
    with path.open("a") as file:
        file.write("much\n" * MOST_BEHIND_BYTES + "last\n")
    text, start_over = tail.read()
    assert start_over
    assert text.endswith("much\nlast\n")
    assert tail.skipped_bytes == path.stat().st_size - TAIL_BYTES
    assert tail.read() == ("", False)


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    """Megabytes in one line are neither kept nor laid out."""
    path = tmp_path / "trainer.log"
    path.write_text("first\n")
    tail = Tail(path)
    tail.read()
    for _ in range(5):
        with path.open("a") as file:
            file.write("x" * TAIL_BYTES)
        assert tail.read() == ("", False)
    text, _ = tail.read()
    assert len(text) == TAIL_BYTES
    assert clean_and_short(text) == "x" * LONGEST_LINE + "…"


def test_it_follows_unless_somebody_reads_above(qtbot: QtBot, styled: QApplication, tmp_path: Path) -> None:
    """Scrolling up stops the following; the end brings it back; the text stays bounded."""
    path = tmp_path / "trainer.log"
    path.write_text("".join(f"line {number}\n" for number in range(500)))
    tab = LogTab()
    qtbot.addWidget(tab)
    tab.resize(500, 300)
    tab.show()
    tab.set_path(path)
    tab.tick()
    bar = tab.text.verticalScrollBar()
    assert bar.value() == bar.maximum()
    bar.setValue(10)
    with path.open("a") as file:
        file.write("more\n" * 50)
    tab.tick()
    assert bar.value() == 10
    tab.follow.click()
    assert bar.value() == bar.maximum()
    with path.open("a") as file:
        file.write("x\n" * 2 * MOST_LINES)
    tab.tick()
    assert tab.text.blockCount() <= MOST_LINES
