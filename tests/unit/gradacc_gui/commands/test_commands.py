"""What the commands print and write for runs that are there."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gradacc_gui.assets import asset
from gradacc_gui.cli import main
from gradacc_gui.session.launch import start
from gradacc_gui.session.stopping import Act, perform
from tests.support import stand_in
from tests.support.events import micro_batch, optimizer_step
from tests.support.fake_runs import Plan, continue_run, write_run
from tests.support.trainers import ROOT
from tests.support.waiting import wait_for
from trainer_backend.inbox import Inbox, Malformed
from trainer_backend.journal import JournalReader, JournalWriter
from trainer_backend.protocol import (
    AnyCommand,
    CommandAccepted,
    CommandRefused,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    SettingChanged,
    Stop,
)
from trainer_backend.recipe import apply_settings, read_document, recipe_from_document
from trainer_backend.run_directory import RunDirectory, runs_folder


class Answerer:
    """A trainer's inbox: keeps what was asked, and accepts or refuses it."""

    def __init__(self, run: RunDirectory, *, refuse: bool = False) -> None:
        self.asked: list[AnyCommand] = []
        self._inbox = Inbox(run.inbox_path)
        self._refuse = refuse
        self.writer = JournalWriter(run.journal_path, attempt=1, on_tick=self._tick)

    def _tick(self) -> None:
        for command in self._inbox.poll():
            self._inbox.remove(command.id)
            assert not isinstance(command, Malformed)
            self.asked.append(command)
            self.writer.put(
                CommandRefused(command_id=command.id, code="superseded")
                if self._refuse
                else CommandAccepted(command_id=command.id, applies_at_step=124)
            )


@pytest.fixture
def live() -> Iterator[tuple[RunDirectory, Answerer]]:
    """A run that is alive and accepts everything."""
    run = write_run(runs_folder(), Plan(steps=3))
    with run.locked():
        answerer = Answerer(run)
        yield run, answerer
        answerer.writer.close()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["set", "gradient_accumulation_steps", "8"], SetAccumulation(steps=8)),
        (
            ["set", "accumulation.gradient_accumulation_steps", "8", "--learning-rate-rule", "sqrt"],
            SetAccumulation(steps=8, learning_rate_rule="sqrt"),
        ),
        (["set", "effective_batch_size", "64"], SetAccumulation(steps=8)),
        (["set", "micro_batch_size", "4"], SetMicroBatchSize(size=4)),
        (
            ["set", "micro_batch_size", "4", "--change-effective-batch"],
            SetMicroBatchSize(size=4, keep_effective_batch=False),
        ),
        (["set", "learning_rate", "1e-4"], SetLearningRate(value=1e-4)),
        (["set", "max_grad_norm", "none"], SetMaxGradNorm(value=None)),
        (["set", "max_grad_norm", "2"], SetMaxGradNorm(value=2.0)),
        (["stop", "--now"], Stop(now=True)),
    ],
)
def test_a_command_asks_for_what_was_typed_and_prints_the_answer(
    live: tuple[RunDirectory, Answerer],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    wanted: AnyCommand,
) -> None:
    """With who asked; N for an effective batch follows from the run's own micro-batch."""
    run, answerer = live

    assert main([arguments[0], run.id, *arguments[1:]]) == 0

    (asked,) = answerer.asked
    assert type(asked) is type(wanted)
    skipped = {"id", "asked_at", "asked_by"}
    for name in set(wanted.__struct_fields__) - skipped:
        assert getattr(asked, name) == getattr(wanted, name)
    assert asked.asked_by
    assert capsys.readouterr().out == "Accepted: from optimizer step 124 on.\n"


def test_the_answer_is_an_event_for_programs(
    live: tuple[RunDirectory, Answerer], capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON object, as the journal has it."""
    run, answerer = live

    assert main(["pause", run.id, "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["type"] == "CommandAccepted"
    assert answer["command_id"] == answerer.asked[0].id
    assert answer["applies_at_step"] == 124


def test_an_effective_batch_that_does_not_divide_is_told(
    live: tuple[RunDirectory, Answerer], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the nearest ones that do."""
    run, answerer = live

    assert main(["set", run.id, "effective_batch_size", "60"]) == 2

    assert "Try 56 or 64" in capsys.readouterr().err
    assert answerer.asked == []


def test_an_effective_batch_is_counted_in_micro_batches_as_set_and_not_as_a_tail_had_them(
    live: tuple[RunDirectory, Answerer],
) -> None:
    """An epoch's last window had 3 samples where a micro-batch has 8."""
    run, answerer = live
    answerer.writer.put(optimizer_step(4, micro_batch_size=3, samples=3))
    answerer.writer.flush()

    assert main(["set", run.id, "effective_batch_size", "64"]) == 0

    assert [asked.steps for asked in answerer.asked if isinstance(asked, SetAccumulation)] == [8]


def test_an_effective_batch_is_counted_in_the_micro_batches_that_were_set_while_paused(
    live: tuple[RunDirectory, Answerer],
) -> None:
    """No window has had them yet."""
    run, answerer = live
    changed = SettingChanged(
        command_id=None, step=4, key="accumulation.micro_batch_size", before=8, after=16, asked_by="me",
        asked_at=0.0,
    )  # fmt: skip
    answerer.writer.put(changed)
    answerer.writer.flush()

    assert main(["set", run.id, "effective_batch_size", "64"]) == 0

    assert [asked.steps for asked in answerer.asked if isinstance(asked, SetAccumulation)] == [4]


def test_a_refusal_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    """With its reason in words."""
    run = write_run(runs_folder(), Plan(steps=3))
    with run.locked():
        answerer = Answerer(run, refuse=True)
        code = main(["checkpoint", run.id])
        answerer.writer.close()

    assert code == 1
    assert capsys.readouterr().err == "A command was refused: a later command took its place.\n"


def test_a_run_that_is_not_live_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left in its inbox."""
    run = write_run(runs_folder(), Plan(steps=3, end="stopped"))

    assert main(["pause", run.id]) == 1

    told = capsys.readouterr().err
    assert f"{run.id} is not live" in told
    assert f"`gradacc resume {run.id}` starts it" in told
    assert list(run.inbox_path.iterdir()) == []


def test_a_run_that_is_not_live_is_called_as_it_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside the home only its path names it."""
    run = write_run(tmp_path / "elsewhere", Plan(steps=3, end="stopped"))
    assert main(["stop", str(run.path)]) == 1
    assert f"`gradacc resume {run.path}` starts it" in capsys.readouterr().err


def test_nothing_is_asked_of_a_run_that_has_finished(capsys: pytest.CaptureFixture[str]) -> None:
    """And nobody is sent to resume it, which would be refused."""
    run = write_run(runs_folder(), Plan(steps=3, end="finished"))
    assert main(["set", run.id, "learning_rate", "0.1"]) == 1
    told = capsys.readouterr().err
    assert "It has finished" in told
    assert "resume" not in told


@pytest.mark.parametrize("damage", ["damaged", "half copied"])
def test_nothing_is_asked_of_a_run_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """Exit code 2, and what is wrong with it; a lost journal's remedy gives up its history by name."""
    run = write_run(runs_folder(), Plan(steps=3, end="stopped"))
    if damage == "damaged":
        run.journal_path.write_bytes(b"not a database" * 1000)
    else:
        run.journal_path.unlink()
        (run.checkpoints_path / "step-000000003").mkdir()
    assert main(["stop", run.id]) == 2
    told = capsys.readouterr().err
    assert damage in told
    assert "gradacc resume" not in told.replace(f"gradacc resume {run.id} --without-history", "")


def test_a_trainer_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """After the time that was given."""
    run = write_run(runs_folder(), Plan(steps=3))
    with run.locked():
        assert main(["pause", run.id, "--timeout", "0.2"]) == 1

    assert "has not answered within 0.2 s" in capsys.readouterr().err


def test_runs_are_listed_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """Newest first, each with its state."""
    finished = write_run(runs_folder(), Plan(steps=3, end="finished"))
    failed = write_run(runs_folder(), Plan(steps=3, end="failed", name="other"))

    assert main(["runs", "--json"]) == 0
    found = {entry["id"]: entry for entry in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found[finished.id]["state"] == "finished"
    assert found[failed.id]["state"] == "failed"
    assert found[failed.id]["step"] == 3
    assert found[failed.id]["path"] == str(failed.path)

    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("step 3" in line for line in lines)


def test_no_runs_are_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    """With how to start one."""
    assert main(["runs"]) == 0
    assert "no runs yet" in capsys.readouterr().out


def test_show_prints_every_event_once_and_non_finite_numbers_as_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Any program's JSON reader takes each line."""
    run = stand_in.new_run()
    writer = JournalWriter(run.journal_path, attempt=1)
    for value in (math.nan, math.inf, -math.inf, None, 0.0):
        writer.put(micro_batch(1, loss=value))
    writer.close()

    assert main(["show", run.id, "--json"]) == 0

    lines = [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in lines] == ["NaN", "Infinity", "-Infinity", None, 0.0]
    assert {line["type"] for line in lines} == {"MicroBatchMeasured"}


def test_show_follows_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a live run, each event once; then it returns by itself."""
    run = stand_in.new_run()
    launch = start(run, stand_in.install(monkeypatch, tmp_path, stand_in.OBEDIENT))
    wait_for(lambda: "ready" in run.log_path.read_text())
    stop = threading.Timer(0.3, lambda: perform(Act.ASK, run, asked_by="test"))
    stop.start()

    assert main(["show", run.id, "--json", "--follow"]) == 0

    stop.join()
    wait_for(lambda: launch.poll() is not None)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["CommandAccepted", "RunStopped"]


def test_show_reads_no_measurements_to_print_facts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a long run they are millions."""
    run = write_run(runs_folder(), Plan(steps=4, end="finished"))
    before = main(["show", run.id]), capsys.readouterr().out

    def refuse(*_: object) -> None:
        raise AssertionError("measurements were read")

    monkeypatch.setattr(JournalReader, "_read_between", refuse)
    assert (main(["show", run.id]), capsys.readouterr().out) == before
    assert "Finished" in before[1]


def test_show_tells_the_facts_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """For a person, without the measurements."""
    run = write_run(runs_folder(), Plan(steps=70, n_changes={60: 8}, end="finished"))

    assert main(["show", run.id]) == 0

    text = capsys.readouterr().out
    assert "finished" in text
    assert "N 4 → 8 at step 60" in text


PUBLISHED = """
[published]
source = "A. Author et al. 2023, table 4"

[published.accumulation]
effective_batch_size = 256

[published.results]
validation_loss = 2.1
"""


def published_run() -> RunDirectory:
    """A run whose N was changed to 8, and whose recipe tells what a paper reports."""
    run = write_run(runs_folder(), Plan(steps=70, n_changes={60: 8}, evaluate_every=20, end="finished"))
    run.recipe_path.write_text(run.recipe_path.read_text("utf-8") + PUBLISHED, "utf-8")
    return run


def test_show_ends_with_what_was_published_beside_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    """As changed while it ran, and as measured last; nothing where nothing was published."""
    assert main(["show", published_run().id]) == 0
    _, _, table = capsys.readouterr().out.partition("As published (A. Author et al. 2023, table 4)")
    rows = {line.rsplit(maxsplit=2)[0].strip(): line.split()[-2:] for line in table.splitlines()[2:]}
    assert rows["Effective batch"] == ["256", "64"]
    assert rows["validation loss"][0] == "2.1"
    assert 0 < float(rows["validation loss"][1]) < 10

    assert main(["show", write_run(runs_folder(), Plan(steps=2, end="finished")).id]) == 0
    assert "published" not in capsys.readouterr().out


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_export_has_a_table_of_what_was_published(tmp_path: Path, form: str) -> None:
    """By the recipe's keys."""
    path = exported(published_run(), tmp_path / "out", "--format", form) / f"published.{form}"
    if form == "csv":
        with path.open(newline="") as file:
            rows = {row["path"]: row for row in csv.DictReader(file)}
    else:
        rows = {row["path"]: row for row in pq.read_table(path).to_pylist()}
    row = rows["accumulation.effective_batch_size"]
    assert (row["published"], row["here"], int(row["same"])) == ("256", "64", 0)


def exported(run: RunDirectory, folder: Path, *options: str) -> Path:
    """Export, and give the folder."""
    assert main(["export", run.id, "--output", str(folder), *options]) == 0
    return folder


def test_csv_and_parquet_hold_the_same_as_the_journal(tmp_path: Path) -> None:
    """Each kind in its own file; unknown is empty, and NaN is not unknown."""
    run = write_run(runs_folder(), Plan(steps=60, nan_steps=(7,), evaluate_every=20))

    as_csv = exported(run, tmp_path / "csv")
    as_parquet = exported(run, tmp_path / "parquet", "--format", "parquet")

    assert {path.stem for path in as_csv.iterdir()} == {path.stem for path in as_parquet.iterdir()}
    for path in as_csv.iterdir():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        table = pq.read_table(as_parquet / f"{path.stem}.parquet").to_pylist()
        assert len(rows) == len(table)
        assert list(rows[0]) == list(table[0])
    with (as_csv / "OptimizerStepMeasured.csv").open(newline="") as file:
        losses = [row["loss"] for row in csv.DictReader(file)]
    assert losses[6] == "NaN"
    steps = pq.read_table(as_parquet / "OptimizerStepMeasured.parquet")
    assert math.isnan(steps["loss"][6].as_py())
    assert steps["step"].to_pylist() == list(range(1, 61))
    (metrics, *_) = pq.read_table(as_parquet / "EvaluationMeasured.parquet")["metrics"].to_pylist()
    assert isinstance(json.loads(metrics), dict)


def test_rows_that_were_trained_again_are_marked(tmp_path: Path) -> None:
    """A second attempt goes on from step 4 of the first one's 6."""
    run = write_run(runs_folder(), Plan(steps=6, evaluate_every=0, checkpoint_every=0))
    continue_run(run, Plan(steps=3, attempt=2, from_step=4, evaluate_every=0, checkpoint_every=0))

    folder = exported(run, tmp_path / "out", "--format", "parquet")

    table = pq.read_table(folder / "OptimizerStepMeasured.parquet").to_pylist()
    assert [(row["attempt"], row["step"], row["superseded"]) for row in table] == [
        (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0), (1, 5, 1), (1, 6, 1), (2, 5, 0), (2, 6, 0), (2, 7, 0),
    ]  # fmt: skip


def test_a_run_without_events_exports_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says so."""
    run = stand_in.new_run()
    JournalWriter(run.journal_path, attempt=1).close()
    exported(run, tmp_path / "out")
    assert "nothing yet" in capsys.readouterr().out


def test_doctor_tells_what_this_machine_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    """It can train, since the tests run here."""
    assert main(["doctor", "--json"]) == 0

    found = {entry["what"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert {"gradacc", "Interpreter", "torch", "GPU readings", "Qt", "Display", "Runs"} <= set(found)
    assert found["torch"]["state"] == "good"
    assert found["Qt"]["state"] == "good"


def test_doctor_says_no_where_training_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No interpreter, no home: exit code 1, and why."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADACC_HOME", str(tmp_path / "file"))

    assert main(["doctor", "--python", str(tmp_path / "none")]) == 1

    text = capsys.readouterr().out
    assert "NO  Interpreter" in text
    assert "NO  Runs" in text


def test_help_imports_nothing_heavy() -> None:
    """Neither Qt, torch, numpy, sqlite3 nor what only a run needs."""
    code = (
        "import sys\n"
        "from gradacc_gui.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'PySide6', 'torch', 'numpy', 'msgspec', 'sqlite3', 'rich', 'tomlkit', 'psutil',\n"
        "              'pyqtgraph', 'subprocess', 'asyncio', 'platformdirs'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["run", "set", "show", "export", "new", "verify", "doctor"])
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """With --help, and exit code 0."""
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: gradacc {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "gone"),
    [
        ("run.max_optimizer_steps=20", "run.epochs"),
        ("run.max_samples=640", "run.epochs"),
        ("accumulation.effective_batch_size=64", "accumulation.gradient_accumulation_steps"),
        ("checkpoint.every_samples=100", "checkpoint.every_minutes"),
    ],
)
def test_a_setting_takes_the_place_of_what_the_recipe_says_instead(setting: str, gone: str) -> None:
    """Who asks for 20 steps of a recipe of one epoch need not know that it says epochs."""
    path = asset("recipes/stdlib-gpt.toml")
    document = read_document(path)
    apply_settings(document, [setting])
    config = recipe_from_document(document, folder=path.parent).config
    section, _, name = gone.partition(".")
    assert getattr(getattr(config, section), name) is None
    assert name not in document[section]
