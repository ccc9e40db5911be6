"""A few of each kill and each fault of a disk: `pytest -m campaign`. All of them: tests.bench.faults."""

from __future__ import annotations

import errno
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.faults._outcomes import course_of, judge, records_now
from tests.bench.faults._trainers import RECIPE
from tests.support.stand_in import new_run
from tests.support.trainers import ROOT, make_run, run_here
from trainer_backend.errors import RunDirectoryError
from trainer_backend.inbox import send
from trainer_backend.protocol import Pause
from trainer_backend.run_directory import RunDirectory, checkpoints_in

WRONG = (
    "unresumable", "not_bit_equal", "events_lost", "commands_without_trace", "hangs", "tracebacks",
)  # fmt: skip
MODULE = ROOT / "tests" / "bench" / "faults" / "_steered_task.py"


def campaign(name: str, few: int) -> dict[str, Any]:
    """What a campaign finds in so many of each kind."""
    command = [sys.executable, "-m", f"tests.bench.faults.{name}", "--few", str(few)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_a_killed_run_goes_on_as_if_nobody_had_killed_it() -> None:
    """Wherever it is killed."""
    found = campaign("kills", 12)
    assert found["kills"] >= 60
    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, 0)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_a_run_whose_disk_fails_goes_on_or_ends_with_a_sentence() -> None:
    """And ends, resumed, as if its disk had been well."""
    found = campaign("disks", 3)
    assert found["injected_faults"] >= 60
    assert {name: found[name] for name in (*WRONG, "not_a_sentence")} == dict.fromkeys(
        (*WRONG, "not_a_sentence"), 0
    )


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_takes_no_folder_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """It was a traceback."""
    run = new_run()

    def refuse(path: Path, *_args: object, **_more: object) -> None:
        raise OSError(error, "refused", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunDirectoryError, match=r"The folder .* cannot be made: refused\. Check"):
        run_here(run)


def lose_a_step(run: RunDirectory) -> None:
    """One measurement less, which nothing tells."""
    connection = sqlite3.connect(run.journal_path)
    with connection:
        connection.execute("DELETE FROM OptimizerStepMeasured WHERE step = 5")
    connection.close()


def change_a_bit(run: RunDirectory) -> None:
    """One of the weights' bits is another."""
    path = list(checkpoints_in(run.checkpoints_path).values())[-1] / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def lose_a_command(run: RunDirectory) -> None:
    """One that nobody answers."""
    send(run.inbox_path, Pause())


def lose_the_journal(run: RunDirectory) -> None:
    """Half of it."""
    run.journal_path.write_bytes(run.journal_path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lose_a_step, "events_lost"),
        (change_a_bit, "not_bit_equal"),
        (lose_a_command, "commands_without_trace"),
        (lose_the_journal, "unresumable"),
    ],
)
def test_a_campaign_sees_what_is_wrong_with_a_run(
    tmp_path: Path, harm: Callable[[RunDirectory], None], kind: str
) -> None:
    """Else its zeros would say nothing."""
    run = make_run(tmp_path / "run", RECIPE, module=MODULE)
    assert run_here(run) == 0
    before, courses = records_now(run), {0: course_of(run)}
    assert judge(run, 0, before, courses).wrong() == {}
    harm(run)
    assert list(judge(run, 0, before, courses).wrong()) == [kind]
