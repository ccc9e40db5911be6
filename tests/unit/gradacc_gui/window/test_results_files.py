"""What an evaluation left on disk: read within bounds, and whatever is wrong is a sentence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QImage

from gradacc_gui.run.evaluations import is_matrix, shares
from gradacc_gui.widgets.artifact_files import (
    LONGEST_LINE,
    MOST_COLUMNS,
    MOST_ROWS,
    TEXT_BYTES,
    Loaded,
    LoadedPicture,
    TableExcerpt,
    TextExcerpt,
    Unreadable,
    load,
)
from tests.support.fake_results import CONFUSION, picture
from trainer_backend.protocol import ArtifactSaved

LARGEST = QSize(400, 300)


def read(folder: Path, kind: Literal["image", "text", "table"], path: str) -> Loaded:
    """As the tab reads an artifact."""
    return load(folder, ArtifactSaved(step=1, kind=kind, path=path, caption=""), LARGEST)


def test_a_picture_is_scaled_while_it_is_read_and_tells_its_own_size(tmp_path: Path) -> None:
    """A large one fits the bound in its own proportions; a small one stays as it is."""
    picture(10, 1600, 400).save(str(tmp_path / "large.png"))
    picture(10, 32, 24).save(str(tmp_path / "small.png"))
    large, small = read(tmp_path, "image", "large.png"), read(tmp_path, "image", "small.png")
    assert isinstance(large, LoadedPicture)
    assert (large.image.width(), large.image.height()) == (400, 100)
    assert (large.width, large.height) == (1600, 400)
    assert isinstance(small, LoadedPicture)
    assert (small.image.width(), small.image.height()) == (32, 24)


def test_a_picture_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    """One line of a hundred million pixels is a few bytes on disk and 400 MB in memory."""
    image = QImage(30_000, 3_000, QImage.Format.Format_Mono)
    image.fill(0)
    image.save(str(tmp_path / "vast.png"))
    vast = read(tmp_path, "image", "vast.png")
    assert isinstance(vast, Unreadable)
    assert vast.sentence == "vast.png cannot be shown: it has 30,000 × 3,000 pixels."


@pytest.mark.parametrize("kind", ["image", "text", "table"])
def test_a_file_that_is_gone_is_a_sentence(tmp_path: Path, kind: Literal["image", "text", "table"]) -> None:
    """Somebody tidied up."""
    gone = read(tmp_path, kind, "artifacts/step-1/gone.x")
    assert isinstance(gone, Unreadable)
    assert gone.sentence == "gone.x cannot be shown: the file no longer exists."


def test_what_is_no_picture_is_a_sentence(tmp_path: Path) -> None:
    """Whatever its name says."""
    (tmp_path / "broken.png").write_bytes(b"no picture at all")
    (tmp_path / "empty.png").write_bytes(b"")
    for name in ("broken.png", "empty.png"):
        broken = read(tmp_path, "image", name)
        assert isinstance(broken, Unreadable)
        assert broken.sentence.startswith(f"{name} cannot be shown: ")


def test_only_files_of_the_run_are_read(tmp_path: Path) -> None:
    """A journal from elsewhere opens no other file of this machine, by no way round."""
    run = tmp_path / "run"
    (run / "artifacts").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (run / "link.txt").symlink_to(tmp_path / "secret.txt")
    for path in ("../secret.txt", "artifacts/../../secret.txt", str(tmp_path / "secret.txt"), "link.txt"):
        outside = read(run, "text", path)
        assert isinstance(outside, Unreadable)
        assert "outside the run's directory" in outside.sentence


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe would never end; a ring of links, a folder and an impossible name are sentences too."""
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "ring.txt").symlink_to(tmp_path / "ring.txt")
    for path in ("pipe.txt", "folder.txt", "ring.txt", "nul\0.txt", "x" * 5_000, "folder.txt/x", ""):
        assert isinstance(read(tmp_path, "text", path), Unreadable), path


def test_a_long_text_shows_its_beginning_and_says_so(tmp_path: Path) -> None:
    """A hundred megabytes cost no more than the first 200 kB."""
    path = tmp_path / "samples.txt"
    with path.open("wb") as file:
        file.write(b"line\n" * 60_000)
        file.truncate(100_000_000)  # a hole: no such text need be written
    words = read(tmp_path, "text", "samples.txt")
    assert isinstance(words, TextExcerpt)
    assert len(words.text) == TEXT_BYTES
    assert words.note == "The first 200 kB of 95.4 MiB; the rest is in the file."


def test_a_text_comes_out_clean_and_in_lines_that_can_be_laid_out(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 and terminal colours are shown as text; a cut letter leaves no mark."""
    (tmp_path / "odd.txt").write_bytes(
        b"\xef\xbb\xbf\x1b[31mred\x1b[0m \xff end\n" + b"x" * (LONGEST_LINE + 1)
    )
    odd = read(tmp_path, "text", "odd.txt")
    assert isinstance(odd, TextExcerpt)
    assert odd.text == "red \ufffd end\n" + "x" * LONGEST_LINE + "\nx"
    assert odd.note == "Very long lines are broken."
    (tmp_path / "cut.txt").write_bytes(b"ab\n" * (TEXT_BYTES // 3) + "ß\n".encode() * 9_000)
    cut = read(tmp_path, "text", "cut.txt")
    assert isinstance(cut, TextExcerpt)
    assert "\ufffd" not in cut.text


def test_a_confusion_matrix_has_one_scale(tmp_path: Path) -> None:
    """The greatest count is darkest, zero has no tint, names have none."""
    (tmp_path / "confusion.csv").write_text(CONFUSION)
    grid = read(tmp_path, "table", "confusion.csv")
    assert isinstance(grid, TableExcerpt)
    assert is_matrix(grid.header, grid.rows)
    assert grid.rows[2] == ("newt", "0", "2", "50")
    assert grid.heat[2] == (None, 0.0, 2 / 50, 1.0)
    assert grid.heat[0][1] == 41 / 50


def test_other_tables_have_a_scale_for_each_column() -> None:
    """A loss and a count do not share one; what is no finite number has no tint."""
    heat = shares(("class", "loss", "count"), (("a", "0.5", "100"), ("b", "nan", "300"), ("c", "1.5", "200")))
    assert heat == ((None, 0.0, 0.0), (None, None, 1.0), (None, 1.0, 0.5))
    assert shares(("same",), (("7",), ("7",))) == ((0.0,), (0.0,))
    assert shares(("nothing",), ()) == ()


def test_a_ragged_table_is_filled_up_and_a_huge_one_is_cut(tmp_path: Path) -> None:
    """Every row gets as many cells as the longest; rows and columns are bounded, and it is said."""
    (tmp_path / "ragged.csv").write_text('a,b\n1\n\n2,"x,\ny",3\n')
    ragged = read(tmp_path, "table", "ragged.csv")
    assert isinstance(ragged, TableExcerpt)
    assert ragged.header == ("a", "b", "")
    assert ragged.rows == (("1", "", ""), ("2", "x,\ny", "3"))
    (tmp_path / "huge.csv").write_text(",".join(map(str, range(400))) + "\n" + "1,2\n" * 5_000)
    huge = read(tmp_path, "table", "huge.csv")
    assert isinstance(huge, TableExcerpt)
    assert len(huge.header) == MOST_COLUMNS
    assert len(huge.rows) == MOST_ROWS - 1
    assert huge.note == "The first 999 rows and 200 columns; the rest is in the file."


def test_what_is_no_table_is_a_sentence(tmp_path: Path) -> None:
    """An empty file, and a cell without end."""
    (tmp_path / "empty.csv").write_text("\n\n")
    (tmp_path / "cell.csv").write_text('"' + "x" * 150_000)
    for name in ("empty.csv", "cell.csv"):
        wrong = read(tmp_path, "table", name)
        assert isinstance(wrong, Unreadable)
        assert wrong.sentence.startswith(f"{name} cannot be shown: it is ")
