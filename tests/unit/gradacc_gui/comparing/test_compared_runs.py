"""What is compared: repetitions in groups, what differs between settings, results against a baseline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradacc_gui.charts.ticks import per_cent
from gradacc_gui.comparing.compared_runs import (
    EFFECTIVE_BATCH,
    ComparedRun,
    Result,
    against,
    cell_of,
    differences,
    grouped,
    ratio_text,
    results_of,
    shown,
    table_of_differences,
    table_of_results,
    title_of,
    uses_validation,
    x_extent,
)
from tests.support.fake_runs import Plan, write_run

Compare = Callable[..., list[ComparedRun]]


@pytest.fixture
def compared(tmp_path: Path) -> Any:
    """Writes runs by their plans and reads them to the end."""
    made: list[ComparedRun] = []

    def make(*plans: Plan) -> list[ComparedRun]:
        runs = [ComparedRun(write_run(tmp_path, plan)) for plan in plans]
        made.extend(runs)
        for run in runs:
            while not run.store.caught_up or run.store.is_behind:
                run.poll(1.0)
        return runs

    yield make
    for run in made:
        run.close()


def test_runs_that_differ_in_their_seed_alone_are_repetitions(compared: Compare) -> None:
    """They are one group; groups are named by the setting that tells them apart."""
    runs = compared(
        Plan(name="a", n=4, seed=1, steps=40),
        Plan(name="b", n=8, steps=20),
        Plan(name="c", n=4, seed=2, steps=40),
    )
    groups = grouped(runs)
    assert [group.label for group in groups] == ["N = 4", "N = 8"]
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[0].names == "a and others · 2 runs"
    assert groups[1].names == "b"


def test_runs_alike_in_all_but_what_has_no_short_word_go_by_name_or_id(
    compared: Compare, tmp_path: Path
) -> None:
    """Two of one name go by their ids; a recipe that cannot be read is a group of its own."""
    first, second = compared(Plan(name="same", steps=10, total_steps=10), Plan(name="same", steps=10))
    assert [group.label for group in grouped([first, second])] == [first.run.id, second.run.id]
    second.run.recipe_path.write_text("no = [toml", encoding="utf-8")
    unread = ComparedRun(second.run)
    assert unread.settings == {}
    groups = grouped([first, unread])
    assert len(groups) == 2
    assert cell_of(groups[1], EFFECTIVE_BATCH, groups[0]) == ("–", "")
    unread.close()


def test_what_differs_comes_first_and_the_rest_is_counted(compared: Compare) -> None:
    """N, then the effective batch that follows from it; names are nobody's setting."""
    groups = grouped(compared(Plan(name="a", n=4, steps=20), Plan(name="b", n=16, steps=20)))
    found = differences(groups)
    assert found.keys == ("accumulation.gradient_accumulation_steps", EFFECTIVE_BATCH)
    assert "optimizer.learning_rate" in found.same
    assert cell_of(groups[1], EFFECTIVE_BATCH, groups[0]) == ("128", "× 4")
    assert [title_of(key) for key in found.keys][1] == "Effective batch"
    rows = table_of_differences(groups)
    assert rows[0][:2] == ["Run", "Name"]
    assert [row[2:] for row in rows[1:]] == [["4", "32"], ["16", "128"]]


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        (8, 4, "× 2"), (4, 8, "÷ 2"), (6e-4, 3e-4, "× 2"), (3e-4 * 2**0.5, 3e-4, "× √2"),
        (3e-4, 3e-4 * 3**0.5, "÷ √3"), (5, 5, ""), (1.37, 1.0, ""), (True, 1, ""), ("a", 1, ""), (0, 4, ""),
        (None, 4, ""),
    ],
)  # fmt: skip
def test_a_ratio_is_told_where_it_is_one(own: Any, other: Any, words: str) -> None:
    """Whole multiples and roots, as rules for batch and learning rate make them."""
    assert ratio_text(own, other) == words


def test_results_are_what_the_rows_say(compared: Compare) -> None:
    """Held against the journal's own rows; validation losses where all runs have some."""
    (run,) = compared(Plan(name="a", steps=80, evaluate_every=40, end="finished"))
    groups = grouped([run])
    assert uses_validation(groups)
    results = {result.title: result for result in results_of(groups[0])}
    steps = run.store.track(__import__("trainer_backend.protocol", fromlist=["x"]).OptimizerStepMeasured)
    durations = np.sort(steps.tail("duration_s", 80))
    assert len(durations) == 80
    assert results["Step time, p95"].mean == pytest.approx(durations[75])
    assert results["Samples / s"].mean == pytest.approx(np.sort(steps.tail("samples_per_s", 80))[39])
    assert results["Final loss"].mean is not None
    assert results["Best loss"].mean is not None
    assert results["Best loss"].mean <= results["Final loss"].mean
    assert results["Active time"].mean == pytest.approx(run.store.extent("time")[1])
    assert x_extent(groups, "steps") == 80
    (bare,) = compared(Plan(name="b", steps=20, evaluate_every=0))
    assert not uses_validation(grouped([run, bare]))


def test_a_difference_is_judged_by_its_direction_and_by_the_spread(compared: Compare) -> None:
    """Less loss is better, more speed is; within the spread of repetitions it is the same."""
    loss = Result("Loss", (2.0,), "real", "less")
    assert against(Result("Loss", (1.9,), "real", "less"), loss) == type(against(loss, loss))(
        "−5.0 %", "better"
    )
    assert against(Result("Loss", (2.1,), "real", "less"), loss).verdict == "worse"
    spread = Result("Loss", (1.95, 2.25), "real", "less")
    assert against(spread, loss).verdict == "same"
    assert spread.text == "2.1 ± 0.21"
    assert against(Result("Loss", (None,), "real", "less"), loss).text == ""
    speed = Result("Speed", (100.0,), "short", "more")
    assert against(Result("Speed", (110.0,), "short", "more"), speed).verdict == "better"
    assert per_cent(0.0001) == "0.0 %"
    assert per_cent(2.5) == "+250 %"
    rows = table_of_results(grouped(compared(Plan(n=4, steps=10), Plan(n=8, steps=10))))
    assert len(rows) == 3
    assert len({len(row) for row in rows}) == 1


def test_values_are_shown_as_people_write_them() -> None:
    """Of every type that a recipe may hold."""
    assert [shown(value) for value in (None, True, 0.0003, [0.9, 0.95], "adamw", 8)] == [
        "–", "yes", "3e-4", "0.9, 0.95", "adamw", "8",
    ]  # fmt: skip
