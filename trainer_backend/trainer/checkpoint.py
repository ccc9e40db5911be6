"""Checkpoints as files: safetensors and JSON, checked by sha256, never half there, never pickled.

    checkpoints/step-000000120/   model.safetensors  training.safetensors  state.json  checksums.json

Written beside under a name that starts with a dot, each file synced, then the folder renamed and its
parent synced. What lies there complete and unaltered can be loaded; anything else is a sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.private_files import make_folder_in, sync
from trainer_backend.run_directory import checkpoints_in

FORMAT: Final = 1
MODEL: Final = "model.safetensors"
TRAINING: Final = "training.safetensors"
STATE: Final = "state.json"
CHECKSUMS: Final = "checksums.json"
_SUPERSEDED: Final = re.compile(r"^step-\d{9,}\.superseded(-\d+)?$")
_PICKLES: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
"""How files of `pickle` and of `torch.save` start."""


class CheckpointError(GradaccError):
    """A checkpoint cannot be used: it is truncated, altered, of another kind, or does not fit."""


class CheckpointMisfitError(CheckpointError, UsageError):
    """A checkpoint is whole, and of another model than the recipe's; older ones are so too."""


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint as read from disk: tensors, plain values and its step."""

    model: dict[str, torch.Tensor]
    training: dict[str, torch.Tensor]
    """Optimizer, engine and generators."""
    state: dict[str, Any]
    """Everything that JSON can hold."""


def unfinished(folder: Path, step: int) -> Path:
    """Where a checkpoint of `step` is written before it gets its name."""
    return folder / f".step-{step:09d}.part"


def write(folder: Path, step: int, saved: Saved) -> tuple[Path, int]:
    """Write a checkpoint of `step`; gives its folder and its size in bytes. Raises CheckpointError.

    `folder` is made where it lacks, never what it lies in: that is the run's, which may have been moved.
    """
    target = folder / f"step-{step:09d}"
    beside = unfinished(folder, step)
    try:
        make_folder_in(folder.parent, folder.name)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(mode=0o700)
        aliases = _write_tensors(saved.model, beside / MODEL)
        _write_tensors(saved.training, beside / TRAINING)
        state = saved.state | {"format": FORMAT, "aliases": aliases}
        (beside / STATE).write_text(json.dumps(state), encoding="utf-8")
        sums = {name: _sha256(beside / name) for name in (MODEL, TRAINING, STATE)}
        (beside / CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")
        for path in beside.iterdir():
            path.chmod(0o600)
            sync(path)
        sync(beside)
        size_bytes = sum(path.stat().st_size for path in beside.iterdir())
        aside = folder / f".{target.name}.old.part"
        if target.exists():  # saved again at the same border
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)
        beside.rename(target)
        sync(folder)
        shutil.rmtree(aside, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        message = (
            f"The checkpoint of step {step} could not be written to {folder}: {error}. Is the disk full?"
        )
        raise CheckpointError(message) from error
    return target, size_bytes


def _write_tensors(tensors: dict[str, torch.Tensor], path: Path) -> dict[str, str]:
    """Write each tensor once; gives the names that share another's memory (a tied head)."""
    first: dict[Any, str] = {}
    aliases: dict[str, str] = {}
    distinct: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.numel() and place in first:
            aliases[name] = first[place]
            continue
        first[place] = name
        plain = tensor.detach().contiguous()
        shares = plain.untyped_storage().nbytes() != plain.numel() * plain.element_size()
        distinct[name] = plain.clone() if shares else plain  # a view would bring all it looks into
    save_file(distinct, path, metadata={"format": "pt"})
    return aliases


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ------------------------------------------------------------------------------------ reading


def read_state(path: Path) -> dict[str, Any]:
    """A checkpoint's plain values. Raises CheckpointError."""
    state = _json_object(path, STATE)
    if state.get("format") != FORMAT:
        message = (
            f"The checkpoint {path.name} is of format {state.get('format')}; this gradacc reads {FORMAT}."
        )
        raise CheckpointError(message)
    return state


def read(path: Path) -> Saved:
    """Load a checkpoint, on the CPU, after comparing its checksums. Raises CheckpointError."""
    _compare(path)
    state = read_state(path)
    model = _load(path / MODEL)
    try:
        aliases = msgspec.convert(state.get("aliases"), dict[str, str])
        model |= {name: model[same_as] for name, same_as in aliases.items()}
    except (msgspec.ValidationError, KeyError) as error:
        message = f"The checkpoint {path.name} is damaged: its {STATE} names no tensors of {MODEL} ({error})."
        raise CheckpointError(message) from error
    return Saved(model, _load(path / TRAINING), state)


def _json_object(path: Path, name: str) -> dict[str, Any]:
    """One of a checkpoint's JSON files. Raises CheckpointError."""
    why: Exception | None = None
    try:
        found = json.loads((path / name).read_text("utf-8"))
        if isinstance(found, dict):
            return found
    except (OSError, ValueError, RecursionError) as error:  # the last: thousands of brackets
        why = error
    message = f"The checkpoint {path.name} has no readable {name}: it is truncated or half copied."
    raise CheckpointError(message) from why


def _compare(path: Path) -> None:
    sums = _json_object(path, CHECKSUMS)
    names = sorted(sums)
    if names != sorted((MODEL, TRAINING, STATE)):
        message = f"The checkpoint {path.name} names files other than {MODEL}, {TRAINING} and {STATE}."
        raise CheckpointError(message)
    for name in names:
        try:
            found_sum = _sha256(path / name)
        except OSError as error:
            message = f"The checkpoint {path.name} lacks {name}: it is truncated or half copied."
            raise CheckpointError(message) from error
        if found_sum != sums[name]:
            message = f"The checkpoint {path.name} was altered or truncated: {name} is not what was saved."
            raise CheckpointError(message)


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        content = path.read_bytes()  # not mapped: the optimizer's state would live in a file that goes
        if content.startswith(_PICKLES):
            message = (
                f"{path.parent.name}/{path.name} was made by pickle or torch.save. Loading it could run code"
                " that it brings, so it is not opened; only safetensors are."
            )
            raise CheckpointError(message)
        tensors: dict[str, torch.Tensor] = load(content)
    except (OSError, SafetensorError) as error:
        message = f"{path.parent.name}/{path.name} is not a safetensors file: {error}."
        raise CheckpointError(message) from error
    return tensors


# ------------------------------------------------------------------------------- keeping house


def keep_newest(folder: Path, keep: int, besides: Container[int] = ()) -> None:
    """Remove all but the newest `keep` and those of the steps `besides`.

    And what a roll-back left behind, and what was never finished.
    """
    kept = checkpoints_in(folder)
    for step in list(kept)[:-keep]:
        if step not in besides:
            shutil.rmtree(kept[step], ignore_errors=True)
    names = {path.name for path in kept.values()}
    try:
        entries = [entry for entry in os.scandir(folder) if entry.name not in names]
    except OSError:  # what is left there is tidied after the next save
        return
    for entry in entries:
        if _SUPERSEDED.match(entry.name) or (
            entry.name.startswith(".step-") and entry.name.endswith(".part")
        ):
            shutil.rmtree(entry.path, ignore_errors=True)


def set_aside(path: Path) -> None:
    """Give an unreadable checkpoint a name that no resume takes, and leave it to be looked at."""
    for count in range(1, 1000):
        aside = path.with_name(f"{path.name.lstrip('.')}.unreadable-{count}")
        if not aside.exists():
            with suppress(OSError):  # a read-only place: it is passed over again next time, and said
                path.rename(aside)
            return


def supersede_after(folder: Path, step: int) -> None:
    """Set checkpoints after `step` aside, so that no resume takes them; the next save removes them."""
    for later, path in checkpoints_in(folder).items():
        if later > step:
            aside = path.with_name(f"{path.name}.superseded")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
