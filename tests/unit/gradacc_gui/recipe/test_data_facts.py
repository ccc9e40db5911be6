"""Inspecting the place where the data are said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradacc_gui.recipe.data_facts import DataFacts, DataQuestion, inspect_data


def question(folder: Path, text: str, **more: object) -> DataQuestion:
    """A question about the language model's text."""
    known = {"pattern": "*.txt", "context_length": 10, "held_out": 0.1} | more
    return DataQuestion(kind="language-model", folder=str(folder), paths=(("data.path", text),), **known)  # type: ignore[arg-type]  # by name


def test_files_and_bytes_are_counted_and_an_epoch_is_estimated(tmp_path: Path) -> None:
    """Only the files that match; hidden folders are not read."""
    for name in ("a.txt", "deep/b.txt", "c.png", ".hidden/d.txt"):
        path = tmp_path / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 500)
    facts = inspect_data(question(tmp_path, "text"))
    assert facts.notes == {"data.path": "2 files, 1 kB"}
    assert facts.samples_an_epoch == 90
    assert facts.faults == {}


def test_the_standard_library_is_what_an_empty_path_means(tmp_path: Path) -> None:
    """Every machine has it."""
    facts = inspect_data(question(tmp_path, "", context_length=128))
    assert "files" in facts.notes["data.path"]
    assert (facts.samples_an_epoch or 0) > 10_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "no such file or folder"),
        ("empty", "No file in"),
        ("short.txt", "fewer than one sample"),
        ("x" * 5000, "no such file or folder"),
        ("~nobody-of-this-name/x", "no such file or folder"),
    ],
)
def test_what_is_not_there_or_not_enough_is_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    """Missing, empty, shorter than one sample."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("x" * 9)
    assert said in inspect_data(question(tmp_path, text)).faults["data.path"]


def test_other_kinds_want_a_folder_that_is_there_and_not_empty(tmp_path: Path) -> None:
    """What is in it is theirs to judge."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("")
    asked = DataQuestion(
        kind="segmentation",
        folder=str(tmp_path),
        paths=(("data.images", "full"), ("data.masks", "empty"), ("data.validation_images", "gone")),
    )
    assert set(inspect_data(asked).faults) == {"data.masks", "data.validation_images"}
    assert inspect_data(DataQuestion(kind="custom", folder="", paths=())) == DataFacts()


def test_a_folder_that_may_not_be_read_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that nothing in it matches: nobody could look. The superuser of a container may read all."""
    (tmp_path / "a.txt").write_text("text " * 1000)
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    facts = inspect_data(question(tmp_path, "."))
    assert facts.faults == {
        "data.path": f"You do not have permission to read {tmp_path}. "
        "Check its permissions, or choose another folder."
    }
