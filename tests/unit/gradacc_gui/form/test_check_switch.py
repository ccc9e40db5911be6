"""The switch between a recipe's form and its check: what holds a start up, and what a press writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomlkit

from gradacc_gui.checking.check_view import Asked
from gradacc_gui.form.new_run_page import FormPage
from tests.unit.gradacc_gui.form.test_new_run_page import retype
from trainer_backend.preflight.findings import Amendment, CheckReport, Finding

N = "accumulation.gradient_accumulation_steps"
STOP = Finding(
    code="n-drops-all",
    state="stop",
    values={"effective": 64, "samples": 20},
    change=Amendment(key=N, value=2),
)


@pytest.fixture
def started(page: FormPage, monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What the page wants checked; nothing is started for it."""
    asked: list[Asked] = []

    def note(text: str, folder: Path, python: str, **more: Any) -> None:
        asked.append((text, folder, more["name"], python))

    monkeypatch.setattr(page.checks.process, "start", note)
    page.resize(1150, 620)
    page.show()
    return asked


def found(page: FormPage, *findings: Finding) -> None:
    """The check under way ends with these."""
    for finding in findings:
        page.checks._hear(finding)
    page.checks._finish(CheckReport(findings=findings))


def test_the_check_takes_the_place_of_the_form(page: FormPage, started: list[Asked]) -> None:
    """What stands in the form is checked, once; the way back leaves all as it was."""
    page.bar.views.button("check").click()
    assert page.checks.isVisibleTo(page)
    assert not page.area.isVisibleTo(page)
    assert not page.start_bar.isVisibleTo(page)
    assert [tomlkit.parse(text).unwrap()["accumulation"] for text, *_ in started] == [
        page.draft.recipe().document.unwrap()["accumulation"]
    ]
    page.bar.views.button("form").click()
    assert page.area.isVisibleTo(page)
    found(page)
    page.bar.views.button("check").click()
    assert len(started) == 1


def test_a_stop_holds_the_start_up_until_the_recipe_is_another(page: FormPage, started: list[Asked]) -> None:
    """On the check's page and on the form's; the sentence says what was found."""
    page.show_view("check")
    assert page.bar.start.isEnabled()
    found(page, STOP)
    assert not page.bar.start.isEnabled()
    page.show_view("form")
    assert not page.start_bar.start.isEnabled()
    assert "N and the data" in page.start_bar.why.text()
    retype(page, N, "3")
    assert page.start_bar.start.isEnabled()
    page.show_view("check")
    assert len(started) == 2


def test_what_a_check_offers_is_written_into_the_form_and_checked_again(
    page: FormPage, started: list[Asked]
) -> None:
    """The field shows it, and the recipe has it."""
    page.show_view("check")
    found(page, STOP)
    page.checks.change_requested.emit(N, 2)
    assert page.draft.valid_value(N) == 2
    assert "gradient_accumulation_steps = 2" in started[-1][0]
    assert len(started) == 2


def test_a_form_with_a_fault_is_not_checked(page: FormPage, started: list[Asked]) -> None:
    """The fault is named, and nothing runs."""
    retype(page, N, "0")
    page.show_view("check")
    assert started == []
    assert "Fix the form first" in page.checks.verdict.more.text()
    assert not page.bar.start.isEnabled()


def test_edits_after_a_check_make_it_old(page: FormPage, started: list[Asked]) -> None:
    """It says so and offers another."""
    page.show_view("check")
    found(page)
    page.draft.set_text(N, "7")
    page._changed()
    assert page.checks.stale.isVisibleTo(page)
    page.bar.again.click()
    assert "gradient_accumulation_steps = 7" in started[-1][0]
