"""`python -m trainer_backend verify`: exit codes, lines, reports, and slips as sentences."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.language_models import write_json_lines, write_model
from trainer_backend.__main__ import main as trainer_main
from trainer_backend.tasks.causal_lm.chunked import chunked_cross_entropy
from trainer_backend.verify.command import main
from trainer_backend.verify.report import AnyMessage, VerifyFailed, VerifyProgress, VerifyReport, decode

RECIPE = """
[run]
name = "tiny"
device = "cpu"
max_optimizer_steps = 3

[task]
kind = "custom"
entry = "{module}:Task"

[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 3
{more}
"""
TASK = """
import torch
from torch import nn
from trainer_backend.tasks import Datasets, LossTerm

class Task:
    def model(self):
        return nn.Linear(3, 2)

    def datasets(self):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn({samples}, 3, generator=generator)
        return Datasets(train=torch.utils.data.TensorDataset(x, x.sum(1).gt(0).long()))

    def loss(self, model, batch):
        x, y = batch
        {loss}
"""
TUNED = """
[run]
device = "cpu"
max_optimizer_steps = 3

[task]
kind = "causal-lm"
model = "model"
method = "full"
max_length = 32

[data]
path = "data.jsonl"
validation_path = "data.jsonl"
broken = "skip"

[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 2
"""
RIGHT = 'return LossTerm(nn.functional.cross_entropy(model(x), y, reduction="sum"), len(y))'
MEAN = "return LossTerm(nn.functional.cross_entropy(model(x), y), len(y))"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A recipe with its task beside it: (loss, more in [accumulation], samples), or the right one."""
    loss, more, samples = getattr(request, "param", (RIGHT, "", 30))
    module = f"task_{abs(hash((str(tmp_path), loss)))}"
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(TASK).format(loss=loss, samples=samples), "utf-8")
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE.format(module=module, more=more), "utf-8")
    return path


def lines(capsys: pytest.CaptureFixture[str]) -> list[AnyMessage]:
    """What --json printed; every line is one of ours."""
    return [decode(line) for line in capsys.readouterr().out.splitlines()]


def test_a_right_recipe_gives_0_and_one_report_behind_the_progress(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--json: progress, then the certificate, and nothing else."""
    assert main([str(recipe), "--json", "--steps", "2,4", "--samples", "8"]) == 0
    *progress, report = lines(capsys)
    assert isinstance(report, VerifyReport)
    assert (report.verdict, report.recipe, report.kind, report.samples) == ("equal", "tiny", "custom", 8)
    assert {entry.steps for entry in report.comparisons} == {1, 2, 4}
    assert all(isinstance(entry, VerifyProgress) for entry in progress)
    assert [entry.code for entry in progress if isinstance(entry, VerifyProgress)][:3] == [
        "importing-torch", "reading-data", "building-model",
    ]  # fmt: skip


def test_the_recipes_own_n_is_among_those_compared(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """N = 3 beside 2, 4 and 8."""
    assert main([str(recipe), "--json"]) == 0
    report = lines(capsys)[-1]
    assert isinstance(report, VerifyReport)
    assert {entry.steps for entry in report.comparisons} == {1, 2, 3, 4, 8}


@pytest.mark.parametrize("recipe", [(MEAN, "", 30)], indirect=True)
def test_another_verdict_than_declared_gives_1(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text: the verdict, the culprit by name, the remedy."""
    assert main([str(recipe), "--samples", "8"]) == 1
    said = capsys.readouterr().out
    assert "Not equal" in said
    assert "this loss term is a mean" in said.lower()
    assert "LossTerm(losses.sum()" in said


@pytest.mark.parametrize("recipe", [(MEAN, 'verdict = "not-equal"', 30)], indirect=True)
def test_a_declared_verdict_gives_0_whatever_it_is(recipe: Path) -> None:
    """A recipe may know that it is not equal."""
    assert main([str(recipe), "--samples", "8"]) == 0


@pytest.mark.parametrize("recipe", [(RIGHT, 'verdict = "not-equal"', 30)], indirect=True)
def test_better_than_declared_is_another_verdict_too(recipe: Path) -> None:
    """What is declared is what is expected."""
    assert main([str(recipe), "--samples", "8"]) == 1


def test_reports_are_saved_as_json_and_as_a_page(recipe: Path, tmp_path: Path) -> None:
    """By the name's ending; more than one may be asked for."""
    json, html = tmp_path / "c.json", tmp_path / "c.html"
    assert main([str(recipe), "--samples", "8", "--report", str(json), "--report", str(html)]) == 0
    assert isinstance(decode(json.read_bytes()), VerifyReport)
    assert "<!doctype html>" in html.read_text("utf-8")


PUBLISHED = """
[published]
source = "Author 2025, table 3"
[published.accumulation]
effective_batch_size = 4096
[published.optimizer]
name = "adamw"
"""


@pytest.mark.parametrize("recipe", [(RIGHT, PUBLISHED, 30)], indirect=True)
def test_what_was_published_stands_beside_what_was_certified(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the terminal, in the JSON and on the page: 2 samples × 3 are an effective batch of 6."""
    json, html = tmp_path / "c.json", tmp_path / "c.html"
    assert main([str(recipe), "--samples", "8", "--report", str(json), "--report", str(html)]) == 0

    made = decode(json.read_bytes())
    assert isinstance(made, VerifyReport)
    assert made.published_source == "Author 2025, table 3"
    rows = [(entry.path, entry.published, entry.here, entry.same) for entry in made.published]
    assert rows == [
        ("accumulation.effective_batch_size", "4096", "6", False),
        ("optimizer.name", "adamw", "adamw", True),
    ]
    said = capsys.readouterr().out
    assert "As published (Author 2025, table 3), and in this run:" in said
    assert any(line.split()[-2:] == ["4096", "6"] for line in said.splitlines())
    assert "Author 2025, table 3" in html.read_text("utf-8")
    assert "<td>4096</td><td class='per-micro-batch'>6</td>" in html.read_text("utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "0"], ["--steps", "1000000000000"],
        ["--steps", "1"], ["--steps", "a"], ["--steps", ""], ["--steps", "2,,4"], ["--steps", "2.5"],
        ["--samples", "0"], ["--samples", "1"], ["--samples", "-4"], ["--samples", "x"], ["--samples", "1e3"],
        ["--report"], ["--nonsense"], ["--report", "no/such/folder/c.html"],
    ],
)  # fmt: skip
def test_bad_usage_gives_2(recipe: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is read or built."""
    assert main([str(recipe), *arguments]) == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert "trainer_backend" not in told  # it may have been asked for as `gradacc verify`
    if arguments[0] == "--steps":
        assert "is not a list of whole numbers from 2 to 100,000" in told


def test_without_a_recipe_it_gives_2() -> None:
    """And --help 0."""
    assert main([]) == 2
    assert main(["--help"]) == 0


def test_a_recipe_that_is_not_there_or_wrong_gives_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the recipe's own sentences."""
    assert main([str(tmp_path / "none.toml")]) == 2
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[run]\nepochs = 0\n", "utf-8")
    assert main([str(wrong), "--json"]) == 2
    (failure,) = lines(capsys)
    assert isinstance(failure, VerifyFailed)
    assert "run.epochs" in failure.message


@pytest.mark.parametrize(
    ("recipe", "sentence", "code"),
    [
        (("raise ValueError('my slip')", "", 30), "my slip", 1),
        (("return model(x).sum()", "", 30), "returned a tensor", 1),
        (("return LossTerm(model(x).sum(), -1)", "", 30), "not negative", 1),
        (("return LossTerm(model(x).sum().half(), 1)", "", 30), "half precision", 1),
        (("return LossTerm(model(x), 1)", "", 30), "0-d", 1),
        ((RIGHT, "", 1), "at least 2", 2),
    ],
    indirect=["recipe"],
)
def test_a_task_that_cannot_be_certified_is_a_sentence(
    recipe: Path, sentence: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 for what the user's code does, 2 for data that are too few; one line, the cause named."""
    assert main([str(recipe), "--json", "--samples", "8"]) == code
    failure = lines(capsys)[-1]
    assert isinstance(failure, VerifyFailed)
    assert sentence in failure.message


@pytest.mark.parametrize("recipe", [("print('noise'); " + RIGHT, "", 30)], indirect=True)
def test_what_the_users_code_prints_does_not_mix_with_json(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes to stderr."""
    assert main([str(recipe), "--json", "--samples", "4", "--steps", "2"]) == 0
    captured = capsys.readouterr()
    assert "noise" in captured.err
    assert all(decode(line) for line in captured.out.splitlines())


def test_the_trainers_command_line_hands_verify_on(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m trainer_backend verify RECIPE`."""
    assert trainer_main(["verify", str(recipe), "--samples", "4", "--steps", "2"]) == 0
    assert "tiny: Equal" in capsys.readouterr().out


def test_what_the_task_warns_of_stands_in_the_certificate_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training and validation data both lose records; the certificate is made all the same."""
    write_model(tmp_path / "model")
    write_json_lines(tmp_path / "data.jsonl", [{"prompt": "this is", "completion": " a text"}] * 9 + [3])
    path = tmp_path / "tuned.toml"
    path.write_text(TUNED, "utf-8")
    assert main([str(path), "--json", "--samples", "4", "--steps", "2"]) == 0
    report = lines(capsys)[-1]
    assert isinstance(report, VerifyReport)
    warned = [entry.values["code"] for entry in report.remarks if entry.code == "task-warned"]
    assert warned.count("records-skipped") == 1
    assert len(warned) == len(set(warned))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "equal"), (1.001, "not-equal")])
def test_the_loss_in_chunks_is_held_against_its_definition(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    verdict: str,
) -> None:
    """A chunked total that is 0.1 % off is no proof of itself."""
    taken = chunked_cross_entropy
    monkeypatch.setattr(
        "trainer_backend.tasks.causal_lm.head.chunked_cross_entropy",
        lambda *arguments: taken(*arguments) * factor,
    )
    write_model(tmp_path / "model")
    write_json_lines(tmp_path / "data.jsonl", [{"prompt": "this is", "completion": " a text"}] * 9)
    path = tmp_path / "tuned.toml"
    path.write_text(TUNED.replace("max_length = 32", 'max_length = 32\nloss = "chunked"'), "utf-8")
    main([str(path), "--json", "--samples", "4", "--steps", "2"])
    report = lines(capsys)[-1]
    assert isinstance(report, VerifyReport)
    assert report.verdict == verdict


def test_a_mixture_of_experts_is_certified_in_fp64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In fp32 a router's small auxiliary loss, which belongs to the micro-batch, would pass for equal."""
    write_model(tmp_path / "model", "mixtral")
    records = [{"prompt": "this is", "completion": " a text" * (1 + place % 3)} for place in range(9)]
    write_json_lines(tmp_path / "data.jsonl", records)
    path = tmp_path / "tuned.toml"
    path.write_text(TUNED, "utf-8")
    main([str(path), "--json", "--samples", "4", "--steps", "2"])
    report = lines(capsys)[-1]
    assert isinstance(report, VerifyReport)
    assert report.reference == "fp64"
    assert report.verdict == "per-micro-batch"
    assert [entry.where for entry in report.culprits] == [("auxiliary",)]


def test_a_slow_recipe_takes_as_many_samples_as_end_in_a_minute_and_says_so(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass over two samples that takes 0.4 s leaves time for five; a number that was asked for stays."""
    monkeypatch.setattr("trainer_backend.verify.sizing._timed", lambda *_: 0.4)
    assert main([str(recipe), "--json"]) == 0
    *progress, report = lines(capsys)
    assert isinstance(report, VerifyReport)
    assert report.samples == 5
    assert {entry.steps for entry in report.comparisons} == {1, 2, 3, 4}
    codes = {entry.code: entry.values for entry in report.remarks}
    assert codes["fewer-samples"] == {"samples": 5, "wanted": 16, "minutes": 3}
    assert "choosing-size" in [entry.code for entry in progress if isinstance(entry, VerifyProgress)]
    assert main([str(recipe), "--json", "--samples", "8"]) == 0
    report = lines(capsys)[-1]
    assert isinstance(report, VerifyReport)
    assert report.samples == 8


def test_ctrl_c_ends_it_in_a_sentence(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is doing."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer_backend.verify.certificate.certify", interrupted)
    assert main([str(recipe), "--json"]) == 1
    assert lines(capsys)[-1] == VerifyFailed(message="Cancelled. No certificate was made.")


def python(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in the project."""
    root = Path(__file__).resolve().parents[4]
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_and_what_the_window_reads_import_no_torch() -> None:
    """The heavy import is paid for by those who make a certificate."""
    script = (
        "import sys; import trainer_backend.verify.report, trainer_backend.verify.sentences, "
        "trainer_backend.verify.html; from trainer_backend.verify.command import main; "
        "main(['--help']); sys.exit('torch' in sys.modules)"
    )
    assert python(["-c", script]).returncode == 0
