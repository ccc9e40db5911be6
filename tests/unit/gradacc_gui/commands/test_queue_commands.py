"""`gradacc queue`: what is typed, what is printed, what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gradacc_gui.cli import main
from gradacc_gui.queueing import slots
from gradacc_gui.queueing.entries import Queue
from gradacc_gui.session.interpreter import probe
from tests.support.fake_runs import Plan, write_run
from trainer_backend.run_directory import runs_folder

RECIPE = """\
[run]
name = "{name}"
device = "cpu"
max_optimizer_steps = 3

[data]
path = "text"

[accumulation]
gradient_accumulation_steps = 2
"""


@pytest.fixture(autouse=True)
def no_runner(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is started; each wish to is noted."""
    started: list[str] = []
    for name in ("gradacc_gui.commands.queue_commands", "gradacc_gui.queueing.runner"):
        monkeypatch.setattr(f"{name}.ensure_runner", lambda *_: started.append("runner"))
    monkeypatch.setattr(slots, "cuda_devices", lambda: ())
    return started


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three recipes in the current folder, with their text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "gradacc_gui.commands.queue_commands.ready_interpreter", lambda _arguments: probe(sys.executable)
    )
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text to learn " * 4000)
    for name in "abc":
        (tmp_path / f"{name}.toml").write_text(RECIPE.format(name=name))
    return ["a.toml", "b.toml", "c.toml"]


def names() -> list[str]:
    """What waits, by name."""
    return [entry.directory.asked_name for entry in Queue().waiting()]


def test_recipes_are_added_listed_moved_and_removed(
    recipes: list[str], capsys: pytest.CaptureFixture[str], no_runner: list[str]
) -> None:
    """Each by its place, its id or its name."""
    assert main(["queue", "add", *recipes, "--set", "run.seed=7"]) == 0
    assert no_runner
    assert names() == ["a", "b", "c"]
    assert Queue().waiting()[0].directory.recipe().config.run.seed == 7
    assert main(["queue", "move", "c", "1"]) == 0
    assert names() == ["c", "a", "b"]
    run = Queue().waiting()[1].directory
    capsys.readouterr()
    assert main(["queue", "remove", "2", "c"]) == 0
    assert names() == ["b"]
    assert not run.path.exists()
    assert "was removed from the queue, and deleted: it was never started" in capsys.readouterr().out
    assert main(["queue", "list"]) == 0
    assert "starts next" in capsys.readouterr().out


def test_the_queue_is_paused_and_resumed(recipes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And the list says so."""
    assert main(["queue", "pause"]) == 0
    assert main(["queue", "add", recipes[0]]) == 0
    capsys.readouterr()
    assert main(["queue"]) == 0
    out = capsys.readouterr().out
    assert "The queue is paused (by " in out
    assert "waits: the queue is paused" in out
    assert main(["queue", "resume"]) == 0
    assert "The queue is running again; 1 run waits." in capsys.readouterr().out
    assert not Queue().settings().paused


def test_the_list_as_json_is_one_object(recipes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With settings, what runs, what waits and for what, and what is done."""
    main(["queue", "add", recipes[0], "--json"])
    added = json.loads(capsys.readouterr().out)
    queue = Queue()
    main(["queue", "add", recipes[1]])
    entry = queue.waiting()[1]
    assert queue.take(entry)
    queue.finish(entry, "failed", "it broke")
    capsys.readouterr()
    assert main(["queue", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["waiting"] == [{"place": 1, "id": added["id"], "waits_for": "starts next"}]
    assert told["done"][0]["reason"] == "it broke"
    assert told["settings"]["cpu_runs"] == 1
    assert told["runner"] is False


def test_nothing_is_added_when_one_recipe_is_refused(
    recipes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """All are read before the first is added."""
    Path("b.toml").write_text("[run]\nepochs = 0\n")
    assert main(["queue", "add", *recipes]) == 2
    assert "run.epochs" in capsys.readouterr().err
    assert names() == []


def test_an_interrupted_run_is_queued_to_be_resumed(
    recipes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished one is not; and removing it from the queue keeps it."""
    cut = write_run(runs_folder(), Plan(name="cut", steps=3))
    write_run(runs_folder(), Plan(name="over", steps=3, end="finished"))
    assert main(["queue", "add", "cut", recipes[0]]) == 0
    assert Queue().waiting()[0].head > 0
    assert main(["queue", "add", "over"]) == 2
    assert "nothing to resume" in capsys.readouterr().err
    assert main(["queue", "remove", "1"]) == 0
    assert cut.path.is_dir()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["set", "cpu_runs", "0"], "cpu_runs = 0: use a whole number from 1 to 1,000."),
        (["set", "on_failure", "explode"], "use continue or pause"),
        (["set", "kept_free", "gpu1"], "gpu1 is no device"),
        (["move", "9", "1"], "No waiting run is called '9'"),
        (["remove", "x"], "No waiting run is called 'x'"),
        (["add", "missing.toml"], "missing.toml"),
        (["add", "nobody"], "No run is called 'nobody'"),
    ],
)
def test_bad_words_are_refused_with_a_sentence(
    words: list[str], sentence: str, recipes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing changes."""
    assert main(["queue", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert names() == []


def test_settings_are_set(recipes: list[str]) -> None:
    """By the names that a person types."""
    main(["queue", "set", "cpu_runs", "2"])
    main(["queue", "set", "on_failure", "pause"])
    main(["queue", "set", "kept_free", "cuda,cuda:2"])
    found = Queue().settings()
    assert (found.cpu_runs, found.pause_on_failure, found.kept_free) == (2, True, ("cuda:0", "cuda:2"))
    main(["queue", "set", "kept_free", "none"])
    assert Queue().settings().kept_free == ()


def test_any_command_starts_a_runner_when_runs_wait(recipes: list[str], no_runner: list[str]) -> None:
    """After a reboot nobody else would."""
    main(["runs"])
    assert no_runner == []
    main(["queue", "add", recipes[0]])
    no_runner.clear()
    main(["runs"])
    assert no_runner == ["runner"]
