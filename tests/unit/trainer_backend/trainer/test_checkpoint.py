"""Checkpoints as files: written whole or not at all, read only when unaltered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer_backend.run_directory import checkpoints_in
from trainer_backend.trainer import checkpoint
from trainer_backend.trainer.checkpoint import CheckpointError, Saved


def saved(value: float = 1.0) -> Saved:
    """A small checkpoint with a tied tensor, a view and an empty one."""
    tied = torch.full((3, 2), value)
    model = {"head": tied, "embedding": tied, "view": torch.arange(10.0)[2:5], "none": torch.zeros(0)}
    return Saved(model, {"optimizer.state.0.step": torch.tensor(value)}, {"step": 7, "text": "ä"})


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    """Tensors bit for bit, tied ones once on disk and twice in memory; nothing half written is left."""
    path, size_bytes = checkpoint.write(tmp_path, 7, saved())
    assert path.name == "step-000000007"
    assert size_bytes == sum(file.stat().st_size for file in path.iterdir())
    again = checkpoint.read(path)
    for name, tensor in saved().model.items():
        assert torch.equal(again.model[name], tensor)
    assert again.state["text"] == "ä"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    """The later one holds."""
    checkpoint.write(tmp_path, 7, saved(1.0))
    path, _ = checkpoint.write(tmp_path, 7, saved(2.0))
    assert checkpoint.read(path).model["head"][0, 0] == 2.0
    assert list(checkpoints_in(tmp_path)) == [7]


@pytest.mark.parametrize("name", [checkpoint.MODEL, checkpoint.TRAINING, checkpoint.STATE])
def test_one_altered_byte_is_found_in_any_file(tmp_path: Path, name: str) -> None:
    """And the file is named."""
    path, _ = checkpoint.write(tmp_path, 7, saved())
    content = bytearray((path / name).read_bytes())
    content[-2] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"altered or truncated: {name}"):
        checkpoint.read(path)


def test_a_file_that_is_missing_is_a_sentence(tmp_path: Path) -> None:
    """A half copied checkpoint."""
    path, _ = checkpoint.write(tmp_path, 7, saved())
    (path / checkpoint.TRAINING).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {checkpoint.TRAINING}"):
        checkpoint.read(path)


def test_a_checkpoint_of_a_newer_format_is_a_sentence(tmp_path: Path) -> None:
    """It is not guessed at."""
    path, _ = checkpoint.write(tmp_path, 7, saved())
    state = json.loads((path / checkpoint.STATE).read_text("utf-8")) | {"format": 99}
    (path / checkpoint.STATE).write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoint.read_state(path)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    """What was never finished goes too."""
    for step in (1, 5, 9, 12):
        checkpoint.write(tmp_path, step, saved())
    (tmp_path / ".step-000000013.part").mkdir()
    checkpoint.keep_newest(tmp_path, 2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-000000009", "step-000000012"]


def test_after_a_roll_back_later_checkpoints_are_set_aside(tmp_path: Path) -> None:
    """No resume takes them, and the next save removes them."""
    for step in (1, 5, 9):
        checkpoint.write(tmp_path, step, saved())
    checkpoint.supersede_after(tmp_path, 1)
    assert list(checkpoints_in(tmp_path)) == [1]
    assert len(list(tmp_path.iterdir())) == 3
    checkpoint.write(tmp_path, 2, saved())
    checkpoint.keep_newest(tmp_path, 3)
    assert list(checkpoints_in(tmp_path)) == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """Nothing half written is left."""
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match="could not be written"):
        checkpoint.write(blocked, 7, saved())
