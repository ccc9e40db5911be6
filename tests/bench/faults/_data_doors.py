"""Doors of what only our own programs write: journals and checkpoints, as a broken disk returns them."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch

from gradacc_gui.session.runs import examine
from gradacc_gui.store.run_store import RunStore
from tests.bench.faults._file_doors import check_sentence
from tests.bench.faults._mutations import bytes_of, plain_of
from tests.bench.faults._trying import Attempt
from tests.support.fake_runs import Plan, write_run
from trainer_backend.errors import GradaccError
from trainer_backend.journal import JournalReader, seal
from trainer_backend.protocol import AnyEvent, MicroBatchMeasured
from trainer_backend.recipe import parse_document, recipe_from_document
from trainer_backend.tasks import Datasets, LossTerm
from trainer_backend.trainer import checkpoint as files
from trainer_backend.trainer.assembly import Parts, assemble
from trainer_backend.trainer.checkpoints import Checkpoints
from trainer_backend.trainer.saving import Standing, take_out

POLLS: Final = 12
ODD_CELLS: Final = (
    None, "", "x", "NaN", b"\xff",
    -1, 0, 1, 2**53, 2**62, -(2**62), 1e300, -1e300, 1e-300, math.inf, 0.5, "[" * 9_000,
    "null", "{}", "[1]", '{"step": ' + "9" * 5_000 + "}", '{"a": NaN}', "\x1b[2J", "\x00",
)  # fmt: skip
_RECIPE: Final = """
[run]
name = "small"
max_samples = 64
[task]
kind = "custom"
entry = "tests.bench.faults._data_doors:Small"
[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 2
[optimizer]
ema_decay = 0.9
"""


def journal(folder: Path) -> Attempt:
    """Journals: examined, followed by the window's store and read whole; damage is a sentence."""
    plan = Plan(
        steps=6, total_steps=6, n_changes={3: 2}, nan_steps=(4,), checkpoint_every=3, evaluate_every=2,
        end="finished",
    )  # fmt: skip
    run = write_run(folder / "runs", plan)
    seal(run.journal_path)
    whole = run.journal_path.read_bytes()

    def attempt(draw: random.Random) -> None:
        for path in run.path.glob("run.sqlite*"):
            path.unlink()
        if draw.random() < 0.4:
            run.journal_path.write_bytes(bytes_of(draw, whole, most=12))
        else:
            run.journal_path.write_bytes(whole)
            _change_cells(draw, run.journal_path)
        if draw.random() < 0.05:
            run.journal_path.with_name("run.sqlite-wal").write_bytes(draw.randbytes(4_096))
        _told(lambda: examine(run))
        _told(lambda: _read_all(run.journal_path))
        store = RunStore(run)
        for _ in range(POLLS):
            store.poll()
        if store.problem:
            check_sentence(store.problem)
        store.close()

    return attempt


def _change_cells(draw: random.Random, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        for _ in range(draw.randint(1, 3)):
            table = draw.choice(("facts", *names))
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            column, value = draw.choice(columns), draw.choice(ODD_CELLS)
            if table == "facts" and draw.random() < 0.6:
                bodies = connection.execute("SELECT seq, body FROM facts").fetchall()
                seq, body = draw.choice(bodies)
                where, column, value = f"seq={seq}", "body", _other_body(draw, body)
            else:
                where = draw.choice(("1", "abs(random()) % 4 = 0"))
            with suppress(sqlite3.Error):  # a key twice, or no number as one
                connection.execute(f'UPDATE {table} SET "{column}"=? WHERE {where}', (value,))  # noqa: S608 - ours


def _other_body(draw: random.Random, body: object) -> Any:
    try:
        return json.dumps(plain_of(draw, json.loads(str(body))))
    except ValueError:
        return body


def _read_all(path: Path) -> None:
    reader = JournalReader(path)
    try:
        after = 0
        while found := reader.read(after):
            found.records()
            after = found.last
        reader.facts()
    finally:
        reader.close()


def _told(look: Callable[[], object]) -> None:
    """Have a look that may be refused with a sentence, and with nothing else."""
    try:
        look()
    except GradaccError as error:
        check_sentence(str(error))


# ------------------------------------------------------------------------------- checkpoints


class Small:
    """A task whose run is quick to make."""

    def model(self) -> torch.nn.Module:
        """A layer and a norm with buffers."""
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))

    def datasets(self) -> Datasets:
        """A few points."""
        return Datasets(train=[torch.full((3,), float(index)) for index in range(16)])

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> LossTerm:
        """A sum over the samples."""
        return LossTerm(model(batch).square().sum(), len(batch))


class _Life:
    """What checkpoints say is not kept."""

    writer: Any = object()

    def put(self, event: AnyEvent) -> None:
        """Take an event."""


def _ignore(event: AnyEvent | MicroBatchMeasured) -> None:
    """A run's events are not what is looked at."""


def checkpoint_parts(folder: Path) -> Parts:
    """A run that has not begun."""
    recipe = recipe_from_document(parse_document(_RECIPE), folder=folder)
    return assemble(recipe, _ignore, on_micro_batch=_ignore, on_fact=lambda _event: None)


def checkpoint(folder: Path) -> Attempt:
    """Checkpoints: one that cannot be used is set aside with a sentence, and the run can still go on."""
    parts = checkpoint_parts(folder)
    run = write_run(folder / "runs", Plan(steps=1, checkpoint_every=0, evaluate_every=0))
    _step(parts)
    good = _saved(parts)
    path, _ = files.write(run.checkpoints_path, 1, good)
    whole = {file.name: file.read_bytes() for file in path.iterdir()}

    def attempt(draw: random.Random) -> None:
        shutil.rmtree(run.checkpoints_path)
        path.mkdir(parents=True)
        for name, content in _changed(draw, whole).items():
            (path / name).write_bytes(content)
        checkpoints = Checkpoints(run, parts.config.checkpoint, _Life())  # type: ignore[arg-type]  # for put
        _told(lambda: checkpoints.resume(parts))
        if not any(run.checkpoints_path.glob("*.unreadable*")):
            _told(lambda: _step(parts))
        if draw.random() < 0.02:  # whatever was tried left nothing that a good one does not set right
            files.write(run.checkpoints_path, 2, good)
            Checkpoints(run, parts.config.checkpoint, _Life()).resume(parts)  # type: ignore[arg-type]  # as above
            again = _saved(parts)
            assert all(torch.equal(again.model[name], tensor) for name, tensor in good.model.items())

    return attempt


def _step(parts: Parts) -> None:
    """What was taken up must be fit to train with."""
    for parameter in parts.accumulator.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    parts.accumulator.optimizer.step()
    parts.accumulator.optimizer.zero_grad()


def _saved(parts: Parts) -> files.Saved:
    standing = Standing(
        settings=parts.settings, position=parts.stream.saved_position(), horizon_samples=64, recipe={},
        journal=(1, 1),
    )  # fmt: skip
    return take_out(parts.accumulator, standing)


def _changed(draw: random.Random, whole: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a checkpoint with one of them changed, mostly under checksums that are right for it."""
    name = draw.choice((files.STATE, files.STATE, files.MODEL, files.TRAINING, files.CHECKSUMS))
    content = whole[name]
    if name in (files.STATE, files.CHECKSUMS) and draw.random() < 0.8:
        content = json.dumps(plain_of(draw, json.loads(content))).encode()
    elif name in (files.MODEL, files.TRAINING) and draw.random() < 0.6:
        content = _other_tensors(draw, content)
    else:
        content = bytes_of(draw, content)
    changed = whole | {name: content}
    if name != files.CHECKSUMS and draw.random() < 0.9:
        sums = {
            other: hashlib.sha256(changed[other]).hexdigest()
            for other in (files.MODEL, files.TRAINING, files.STATE)
        }
        changed[files.CHECKSUMS] = json.dumps(sums).encode()
    if draw.random() < 0.05:
        del changed[draw.choice(sorted(changed))]
    return changed


def _other_tensors(draw: random.Random, content: bytes) -> bytes:
    tensors = safetensors.torch.load(content)
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    match draw.randrange(6):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = tensor.reshape(-1)[:1].clone()
        case 2:
            tensors[name] = torch.zeros((2, 3, 1))
        case 3:
            tensors[name] = tensor.to(draw.choice((torch.float64, torch.int64, torch.bool, torch.bfloat16)))
        case 4:
            tensors[draw.choice(("x", "engine.x", "optimizer.state.9.exp_avg", "own.0", "generator.x"))] = (
                tensor.clone()
            )
        case _:
            tensors[name] = torch.zeros(0)
    return safetensors.torch.save(tensors)
