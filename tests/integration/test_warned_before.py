"""What accumulation cannot make right is told before a run, in its journal and the window, and by verify."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from gradacc_gui import words
from tests.support import flawed_task
from tests.support.trainers import events, make_run, records, run_here
from trainer_backend.protocol import RunFailed, RunStarted, Warned
from trainer_backend.run_directory import RunDirectory
from trainer_backend.verify.command import main as verify


class Told(NamedTuple):
    """What must be said of a flaw."""

    code: str
    in_window: str
    in_certificate: str
    micro_batch_size: int = 3
    fails: bool = False


FLAWS = {
    "batch-norm": Told(
        "batch-norm", "(1 modules, first norm) sees each micro-batch of 3", "BatchNorm normalizes each micro"
    ),
    "batch-norm of one": Told(
        "batch-norm-of-one", "sees a single sample at a time", "note: 1 BatchNorm layers in train mode", 1
    ),
    "hook": Told("optimizer-in-backward", "A hook on last.bias", "note: A hook on last.bias"),
    "reentrant": Told(
        "reentrant-checkpointing",
        "checkpointing inner.weight is used",
        "note: Under reentrant check",
    ),
    "mean": Told("loss-mean", "looks like a mean", "This loss term is a mean"),
    "half-weights": Told(
        "half-gradients", "8 parameters gather their gradients in half", "note: 8 parameters gather"
    ),
    "half-total": Told("loss-half", "The total of loss is bfloat16", "overflows or rounds away", fails=True),
}


def flawed(folder: Path, name: str) -> RunDirectory:
    """A run of three windows with that flaw."""
    accumulation = {
        "micro_batch_size": FLAWS[name].micro_batch_size,
        "gradient_accumulation_steps": 2,
        "gradient_dtype": "parameter",
    }
    data = {
        "run": {"device": "cpu", "precision": "fp32", "max_optimizer_steps": 3},
        "task": {"options": {"flaw": name.split(" ", maxsplit=1)[0]}},
        "accumulation": accumulation,
    }
    return make_run(folder, data, module=Path(flawed_task.__file__))


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_in_the_journal_before_the_run_starts_and_worded_in_the_window(
    tmp_path: Path, name: str
) -> None:
    """Once, by its code; a half-precision total also ends the run, by name."""
    told = FLAWS[name]
    run = flawed(tmp_path, name)
    assert run_here(run) == (1 if told.fails else 0)
    (warned,) = [event for event in events(run, Warned) if not words.is_about_readings(event)]
    assert warned.code == told.code
    assert told.in_window in words.warning(warned)
    assert words.is_error(warned) is (name == "batch-norm of one")
    facts = [record.event for record in records(run)]
    assert facts.index(warned) < [type(fact) for fact in facts].index(RunStarted)
    assert bool(events(run, RunFailed)) is told.fails


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_told_by_the_certificate(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As what breaks equality, as a note beside the verdict, or as why there is none."""
    run = flawed(tmp_path, name)
    verify([str(run.path), "--steps", "2", "--samples", "8"])
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count(FLAWS[name].in_certificate) == 1
