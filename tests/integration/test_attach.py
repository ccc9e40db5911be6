"""Another machine behind a real sshd with a throw-away key: start, attach, steer, and what ssh would ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradacc_gui.cli import main
from tests.support.far_machine import SSHD, FarMachine, ssh_machine
from tests.support.waiting import wait_for
from trainer_backend.protocol import RunFinished
from trainer_backend.run_directory import RunDirectory, find_run

pytestmark = pytest.mark.skipif(SSHD is None, reason="no sshd is installed here (.ci/run installs it)")

RECIPE = """\
[run]
device = "cpu"
precision = "fp32"
max_optimizer_steps = 6

[task]
kind = "language-model"
context_length = 16
layers = 1
width = 16
heads = 2

[data]
path = "text.txt"

[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 2
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FarMachine]:
    """Behind sshd."""
    with ssh_machine(tmp_path, monkeypatch) as machine:
        yield machine


def test_a_run_is_started_there_and_followed_here(
    machine: FarMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe goes over, its data are the far machine's. Then a command and a resume by the mirror."""
    far_folder = tmp_path / "far-project"
    far_folder.mkdir()
    (far_folder / "text.txt").write_text("to be or not to be " * 200)
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    assert main(["run", str(recipe), "--on", machine.host, "--folder", str(far_folder), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["type"] == RunFinished.__name__
    (path,) = machine.runs.iterdir()
    run, mirror = RunDirectory(path), find_run(path.name)
    assert mirror.typed == f"{machine.host}:{run.id}"
    assert run.asked_name == "tiny"

    assert main(["pause", mirror.typed]) == 1
    assert "is not live" in capsys.readouterr().err
    assert main(["resume", mirror.typed, "--detach"]) == 1
    assert f"{machine.host}: {run.id} has finished" in capsys.readouterr().err
    wait_for(lambda: not run.is_alive())


def test_what_the_far_machine_refuses_is_its_sentence(
    machine: FarMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started; the data are not there."""
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    assert main(["run", str(recipe), "--on", machine.host, "--detach"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{machine.host}: ")
    assert "data.path" in said
    assert not machine.runs.exists()


def test_what_ssh_would_ask_is_told_with_the_command_for_a_terminal(
    machine: FarMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host key that is not known, then a key that does not open the door."""
    known = tmp_path / "known_hosts"
    known.rename(tmp_path / "aside")
    assert main(["attach", f"{machine.host}:demo"]) == 1
    said = capsys.readouterr().err
    assert "does not know the key of far-gpu" in said
    assert "In a terminal: ssh far-gpu" in said
    (tmp_path / "aside").rename(known)
    (tmp_path / "key.pub").write_text("")
    assert main(["attach", f"{machine.host}:demo"]) == 1
    said = capsys.readouterr().err
    assert "wants a password" in said
    assert "In a terminal: ssh -fNMS ~/.ssh/gradacc-far-gpu far-gpu" in said
