"""Every bad input of a person's is one clear sentence and exit code 2; nothing is started or written over."""

from __future__ import annotations

import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from gradacc_gui.cli import main
from tests.support.fake_runs import Plan, write_run
from trainer_backend.run_directory import runs_folder

GOOD = """\
[run]
max_optimizer_steps = 2

[data]
path = "text"

[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 4
"""
N = "accumulation.gradient_accumulation_steps"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe that would run, with its text beside it."""
    (tmp_path / "text").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "text" / name).write_text("all that glitters is not gold. " * 200)
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, gradacc_home: Path) -> Callable[..., str]:
    """Run a command line that must be refused; gives the sentence."""

    def run(*arguments: str) -> str:
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        try:
            code = main(list(arguments))
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        said = capsys.readouterr()
        assert code == 2
        assert said.out == ""
        assert "Traceback" not in said.err
        assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert not (gradacc_home / "runs").exists() or not list((gradacc_home / "runs").glob("mine*"))
        sentence = said.err.strip()
        assert sentence
        assert "\n" not in sentence
        return sentence

    return run


@pytest.mark.parametrize(
    ("setting", "key", "told"),
    [
        (f"{N}=0", N, "= 0 is not right. It must be a whole number from 1 to 1,000,000"),
        (f"{N}=-4", N, "= -4 is not right"),
        (f"{N}=0.5", N, "= 0.5 is not right. It must be a whole number"),
        (f'{N}=""', N, "is blank. It must be a whole number"),
        (f"{N}=", N, "is missing. Give N"),
        (f"{N}=abc", N, '= "abc" is not right'),
        (f"{N}=1_000_000_000_000", N, "= 1000000000000 is not right"),
        (f"{N}=true", N, "= true is not right"),
        (
            "accumulation.micro_batch_siez=4",
            "accumulation.micro_batch_siez",
            "Did you mean micro_batch_size?",
        ),
        ("acumulation.micro_batch_size=4", "acumulation", "Did you mean accumulation?"),
        ("run.seed=yes", "run.seed", '= "yes" is not right'),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate", "= -1 is not right. It must be a number"),
        ("run.device=gpu", "run.device", "It must look like one of auto, cpu, cuda"),
        ("data.path=nowhere", "data.path", 'data.path = "nowhere": There is no such file or folder'),
    ],
)
def test_a_wrong_setting_names_key_value_and_remedy(
    recipe: Path, refused: Callable[..., str], setting: str, key: str, told: str
) -> None:
    """As it would be in the recipe itself."""
    sentence = refused("run", str(recipe), "--set", setting)

    assert key in sentence
    assert told in sentence
    assert "mine.toml" not in sentence or "data.path" in setting  # the file did not say it


def test_every_fault_has_a_sentence_of_its_own(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two faults, two lines; nobody has to run it twice to learn of both."""
    assert main(["run", str(recipe), "--set", f"{N}=0", "--set", "run.sed=1"]) == 2

    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2


@pytest.mark.parametrize("setting", ["nothing", "=4", "run=4", "run.seed.deeper=1", ".=1"])
def test_a_setting_that_is_no_setting_is_refused(
    recipe: Path, refused: Callable[..., str], setting: str
) -> None:
    """It must be KEY=VALUE."""
    assert refused("run", str(recipe), "--set", setting)


def test_a_missing_recipe_is_told(tmp_path: Path, refused: Callable[..., str]) -> None:
    """With its path."""
    assert "nowhere.toml cannot be read: No such file" in refused("run", str(tmp_path / "nowhere.toml"))


def test_a_folder_is_no_recipe(tmp_path: Path, refused: Callable[..., str]) -> None:
    """With its path."""
    assert "cannot be read" in refused("run", str(tmp_path))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[run\nseed = 1\n", "not valid TOML"),
        (b"[run]\nseed = 1\nseed = 2\n", "not valid TOML"),
        (b"\xff\xfe\x00run", "is not text in UTF-8"),
        (b"#" * (2 << 20), "larger than 1 MiB"),
        (b"recipe_version = 99\n[run]\nepochs = 1\n", "written by a newer gradacc"),
        (b"recipe_version = 'x'\n[run]\nepochs = 1\n", "is not a recipe version"),
        (b"run = 3\n", "is not a table"),
        (b"", "does not say how long to train"),
    ],
)
def test_an_unreadable_recipe_is_told(
    recipe: Path, refused: Callable[..., str], content: bytes, told: str
) -> None:
    """Where and why."""
    recipe.write_bytes(content)

    sentence = refused("run", str(recipe))

    assert str(recipe) in sentence
    assert told in sentence


def test_an_older_recipe_with_a_key_that_is_no_more_is_told(
    recipe: Path, refused: Callable[..., str]
) -> None:
    """What an older version called otherwise is brought up to date; what it never had is refused."""
    recipe.write_text("recipe_version = 0\n" + GOOD.replace("[run]", "[run]\ngpus = 2"))

    assert "run.gpus is not a key of a recipe" in refused("run", str(recipe))


def test_an_empty_folder_of_data_is_told(recipe: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    """With the pattern that nothing matched."""
    (tmp_path / "empty").mkdir()

    sentence = refused("run", str(recipe), "--set", "data.path=empty")

    assert 'data.path = "empty": No file in' in sentence
    assert "*.txt" in sentence


def test_a_file_shorter_than_one_context_is_told(
    recipe: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """With both lengths."""
    (tmp_path / "short.txt").write_text("too short")

    sentence = refused("run", str(recipe), "--set", "data.path=short.txt")

    assert 'data.path = "short.txt": 9 bytes are fewer than one sample of 129' in sentence


def test_an_interpreter_without_torch_is_told(
    recipe: Path, tmp_path_factory: pytest.TempPathFactory, refused: Callable[..., str]
) -> None:
    """Before anything is made."""
    bare = tmp_path_factory.mktemp("bare")
    venv.create(bare, with_pip=False, symlinks=True)

    assert "has no torch" in refused("run", str(recipe), "--python", str(bare))


def test_an_interpreter_that_is_none_is_told(
    recipe: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """Its path, and what to do."""
    assert "Choose a Python interpreter" in refused("run", str(recipe), "--python", str(tmp_path / "none"))


@pytest.mark.parametrize("command", ["show", "resume", "pause", "stop", "checkpoint", "export"])
@pytest.mark.parametrize(
    ("name", "told"),
    [("nobody", "No run is called 'nobody'"), ("", "blank"), ("./nowhere", "no run directory at")],
)
def test_a_run_that_is_not_there_is_told(
    refused: Callable[..., str], command: str, name: str, told: str
) -> None:
    """Whatever is asked of it."""
    assert told in refused(command, name)


def test_a_name_that_fits_several_runs_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With their ids."""
    for _ in range(2):
        write_run(runs_folder(), Plan(steps=2))

    assert main(["show", "stdlib"]) == 2

    assert "may be any of 2 runs (stdlib-gpt-" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "resume"])
def test_a_damaged_run_is_told(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """And left as it is."""
    run = write_run(runs_folder(), Plan(steps=2))
    run.journal_path.write_bytes(b"not a database" * 1000)

    assert main([command, run.id]) == 2

    assert "damaged or half copied" in capsys.readouterr().err
    assert run.journal_path.read_bytes().startswith(b"not a database")


def test_a_half_copied_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Its recipe was not copied."""
    run = write_run(runs_folder(), Plan(steps=2))
    run.recipe_path.unlink()

    assert main(["resume", run.id]) == 2
    assert "half copied: it has no recipe.toml" in capsys.readouterr().err


def test_a_finished_run_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing left to do."""
    run = write_run(runs_folder(), Plan(steps=2, end="finished"))

    assert main(["resume", run.id]) == 2
    assert "has finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("gradient_accumulation_steps", "0", f"{N} = 0 is not right"),
        ("gradient_accumulation_steps", "-4", f"{N} = -4 is not right"),
        ("gradient_accumulation_steps", "0.5", f"{N} = 0.5 is not right"),
        ("gradient_accumulation_steps", "", f"{N} is blank"),
        ("gradient_accumulation_steps", "abc", f'{N} = "abc" is not right'),
        ("gradient_accumulation_steps", "1000000000000", f"{N} = 1000000000000 is not right"),
        ("learning_rate", "-1", "optimizer.learning_rate = -1 is not right"),
        ("max_grad_norm", "0", "optimizer.max_grad_norm = 0 is not right"),
        ("momentum", "0.9", "momentum cannot be changed in a live run"),
        ("optimizer.micro_batch_size", "2", "cannot be changed in a live run"),
    ],
)
def test_a_wrong_change_of_a_live_run_is_refused_before_it_is_asked(
    capsys: pytest.CaptureFixture[str], key: str, value: str, told: str
) -> None:
    """By the same rules as in the recipe; nothing enters the inbox."""
    run = write_run(runs_folder(), Plan(steps=2))
    with run.locked():
        assert main(["set", run.id, key, value]) == 2

    assert told in capsys.readouterr().err
    assert list(run.inbox_path.iterdir()) == []


def test_a_missing_display_is_told(monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]) -> None:
    """With the way to run without one."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")

    assert "`gradacc run RECIPE` trains without one" in refused()


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run"], ["set", "x"], ["export", "x", "--format", "xml"], ["--nonsense"]]
)
def test_a_wrong_command_line_is_one_line(refused: Callable[..., str], arguments: list[str]) -> None:
    """With where to look."""
    assert "--help" in refused(*arguments)


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path, refused: Callable[..., str]) -> None:
    """Neither by a template nor by an export."""
    (tmp_path / "my_task.py").write_text("mine")
    assert "already exists" in refused("new", "task", str(tmp_path / "my_task.py"))

    (tmp_path / "other_task.toml").write_text("mine")
    assert "other_task.toml already exists" in refused("new", "task", str(tmp_path / "other_task.py"))
    assert "not a Python name" in refused("new", "task", str(tmp_path / "my-task.py"))

    run = write_run(runs_folder(), Plan(steps=2))
    assert "not empty" in refused("export", run.id, "--output", str(tmp_path))


@pytest.mark.parametrize(
    ("typed", "near"), [("rum", "run"), ("resum", "resume"), ("verfy", "verify"), ("stopp", "stop")]
)
def test_a_mistyped_command_is_told_the_nearest(refused: Callable[..., str], typed: str, near: str) -> None:
    """As a shell's own user would hope."""
    assert f"did you mean {near}?" in refused(typed)


def test_a_mistyped_setting_is_told_the_nearest(refused: Callable[..., str]) -> None:
    """And which ones there are."""
    run = write_run(runs_folder(), Plan(steps=2))
    assert "Did you mean learning_rate? These can: " in refused("set", run.id, "learning_rat", "3")


def test_lengths_that_are_both_asked_for_are_refused(refused: Callable[..., str], recipe: Path) -> None:
    """Only what the recipe says gives way to what is asked."""
    said = refused("run", str(recipe), "--set", "run.epochs=1", "--set", "run.max_samples=10")
    assert "run.epochs and run.max_samples are given together" in said
