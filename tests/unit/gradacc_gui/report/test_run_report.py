"""A run as one page: what stands in it, and that nothing in a run can break it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gradacc_gui.cli import main
from gradacc_gui.report.run_report import report_page, write_report
from tests.support.fake_runs import Plan, new_run, write_run
from trainer_backend.errors import RunDirectoryError
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import AnyEvent, GateAnswered, TargetJudged
from trainer_backend.run_directory import RunDirectory, runs_folder

MORE = """
[targets]
step_time = 0.1
validation_loss = 2.3

[prices]
per_hour = 2.0
per_kwh = 0.3
currency = "EUR"

[published]
source = "A paper <b>2020</b>"
results = {validation_loss = 2.0}
"""
PLAN = Plan(steps=200, n_changes={80: 8, 160: 2}, nan_steps=(90,), end="finished", noise_every=8)


class Checker(HTMLParser):
    """Whether every element is closed, and nothing is loaded from elsewhere."""

    VOID = frozenset({"meta", "line", "circle", "polyline", "polygon", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opened; src and href would load something."""
        self.seen.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        """A point, a line."""
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Closed in the order of opening."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """What a person reads."""
        self.texts.append(data.strip())


def checked(page: str) -> Checker:
    """The page, read as a browser reads it."""
    found = Checker()
    found.feed(page)
    found.close()
    assert found.open == []
    assert "script" not in found.seen
    assert "NaN" not in re.findall(r'points="[^"]*"', page)
    return found


def made(plan: Plan = PLAN, more: str = MORE) -> RunDirectory:
    """A made-up run with targets, prices and what was published."""
    run = write_run(runs_folder(), plan)
    run.recipe_path.write_text(run.recipe_path.read_text("utf-8") + more, "utf-8")
    return run


def append_facts(run: RunDirectory, *facts: AnyEvent) -> None:
    """Write more into the run's journal."""
    writer = JournalWriter(run.journal_path, attempt=1)
    for fact in facts:
        writer.put(fact)
    writer.close()


def test_a_page_tells_verdicts_results_changes_decisions_and_configuration() -> None:
    """Each section, with its numbers; a published text is shown as text."""
    run = made()
    append_facts(
        run,
        TargetJudged(
            step=200, samples_seen=1, key="targets.step_time", bound="at-most", target=0.1, reached=0.15,
            verdict="missed", act="warn", measurements=200, is_final=True, overridden=True,
        ),
        GateAnswered(
            command_id="1", step=100, key="targets.step_time", answer="continue", reason="warming <up>",
            asked_by="ada", asked_at=1.0,
        ),
    )  # fmt: skip
    (run.path / "incidents").mkdir()
    (run.path / "incidents" / "step-90.json").write_text('{"what": "loss is NaN </pre>"}')
    page = checked(report_page(run))
    texts = page.texts
    heads = [
        "Targets", "Results", "Published beside this run", "Charts", "Changes of N", "Incidents",
        "What happened", "Environment", "Configuration",
    ]  # fmt: skip
    assert list(dict.fromkeys(text for text in texts if text in heads)) == heads
    for expected in ("0.15 s", "missed, went on", "not yet known", "4 → 8", "8 → 2", "A paper <b>2020</b>",
                     "step-90.json", "NVIDIA RTX 4070", "Energy per optimizer step", "ada"):  # fmt: skip
        assert expected in texts, expected
    assert any("EUR" in text for text in texts)
    assert any("warming <up>" in text for text in texts)
    assert any('kind = "language-model"' in text for text in texts)
    assert page.seen.count("svg") == 8


def test_what_was_not_measured_is_said_and_draws_nothing() -> None:
    """A run on a CPU that has just begun."""
    run = made(Plan(steps=1, gpu=False, evaluate_every=0), more="")
    page = checked(report_page(run))
    assert "not measured" in page.texts
    assert "Targets" not in page.texts
    assert "Changes of N" not in page.texts
    assert "Money" not in page.texts


def test_money_without_a_measured_energy_is_not_guessed() -> None:
    """The price is per kWh, and a CPU has no counter."""
    page = checked(report_page(made(Plan(steps=20, gpu=False))))
    assert "not known: the price is per kWh, and energy is not measured" in page.texts


def test_a_run_that_never_trained_has_a_page_too() -> None:
    """Its configuration, and no time at which it would have begun."""
    run = new_run(runs_folder(), PLAN)
    page = checked(report_page(run))
    assert any(text.endswith(" at step 0 (0 samples).") for text in page.texts)
    assert "Configuration" in page.texts


def test_the_command_writes_beside_and_never_over_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named after the run; --force overwrites."""
    monkeypatch.chdir(tmp_path)
    run = made(Plan(steps=5))
    assert main(["report", run.id]) == 0
    path = tmp_path / f"{run.id}-report.html"
    assert capsys.readouterr().out.strip() == path.name
    checked(path.read_text("utf-8"))
    assert main(["report", run.id]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["report", run.id, "--force", "-o", path.name]) == 0


def test_a_place_that_takes_no_file_and_a_damaged_journal_are_sentences(tmp_path: Path) -> None:
    """Both name the path."""
    run = made(Plan(steps=5))
    with pytest.raises(RunDirectoryError, match="cannot be written to"):
        write_report(run, tmp_path / "nowhere" / "report.html")
    run.journal_path.write_bytes(b"no database, though long enough to be taken for one" * 200)
    with pytest.raises(RunDirectoryError):
        report_page(run)
