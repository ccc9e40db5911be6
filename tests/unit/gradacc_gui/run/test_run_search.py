"""What is typed into the search of the runs list, and what it finds; how columns sort."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradacc_gui.run.run_columns import BY_KEY, COLUMNS, SHOWN_FIRST, in_order, why_not_deleted
from gradacc_gui.run.run_search import RunSearch, parse_query
from gradacc_gui.session.about_file import NO_NOTES, AboutRun
from gradacc_gui.session.runs import RunSummary
from trainer_backend.protocol import Scalar
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState

N, RATE = "accumulation.gradient_accumulation_steps", "optimizer.learning_rate"


def line(
    name: str,
    state: RunState = RunState.FINISHED,
    n: int = 4,
    rate: float = 1e-3,
    *,
    about: AboutRun = NO_NOTES,
    val: float | None = None,
) -> RunSummary:
    """A run with some settings."""
    settings: dict[str, Scalar] = {
        N: n,
        RATE: rate,
        "task.kind": "causal-lm",
        "task.model": "Qwen/Qwen3-0.6B",
    }
    return RunSummary(
        run=RunDirectory(Path("/runs") / f"{name}-1"), name=name, state=state, settings=settings, about=about,
        effective_batch=8 * n, validation_loss=val,
    )  # fmt: skip


LINES = [
    line("first", n=8, rate=3e-4, about=AboutRun(tags=("paper", "to check")), val=2.5),
    line("second", n=16, rate=1e-3, about=AboutRun(note="Figure three", starred=True), val=3.5),
    line("third", RunState.FAILED, n=4, rate=2e-3),
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "first second third"),
        ("n=8", "first"),
        ("n!=8", "second third"),
        ("lr<1e-3", "first"),
        ("lr<=0.001 n>=16", "second"),
        ("batch>=64", "first second"),
        ("kind:causal", "first second third"),
        ("model:qwen", "first second third"),
        ("task.model=qwen/qwen3-0.6b", "first second third"),
        ("learning_rate=2e-3", "third"),
        ("val<3", "first"),
        ("val>0", "first second"),
        ("tag:paper", "first"),
        ('tag="to check"', "first"),
        ('tag:"to check" n=8', "first"),
        ("is:starred", "second"),
        ("state:failed", "third"),
        ("is:failed", "third"),
        ("is:over -state:failed", "first second"),
        ("FIGURE", "second"),
        ('"figure three"', "second"),
        ("-figure", "first third"),
        ("nothing=here", ""),
        ("n=", "first second third"),
        ("n<abc", "first second third"),
        ("🦊 ' OR 1=1 --", ""),
    ],
)
def test_a_search_finds_what_fits_all_its_terms(text: str, found: str) -> None:
    """By names, tags, notes and settings; numbers compare as numbers."""
    query = parse_query(text)
    assert " ".join(one.name for one in LINES if query.fits(one)) == found
    assert " ".join(one.name for one in RunSearch().found(query, LINES)) == found


def test_a_comparison_with_no_number_is_told_and_not_silently_empty() -> None:
    """With an example of what is right."""
    assert parse_query("lr<fast").problem.startswith('"lr<fast" compares with a number')
    assert parse_query("lr<1e-3").problem == ""


def test_a_search_over_long_and_odd_texts_is_a_search() -> None:
    """10,000 characters, quotes that are not closed."""
    odd = line("odd", about=AboutRun(tags=("x" * 10_000, 'it\'s "quoted"', "🦊")))
    search = RunSearch()
    assert search.found(parse_query("x" * 10_000), [odd]) == [odd]
    assert search.found(parse_query('"quoted'), [odd]) == [odd]
    assert search.found(parse_query("tag:🦊"), [odd]) == [odd]
    search.keep_only([])


def test_unfinished_runs_stand_on_top_and_unknown_values_last() -> None:
    """Whatever the order is."""
    lines = [
        line("a", val=2.0), line("b"), line("c", val=1.0), line("d", val=float("nan")),
        line("live", RunState.RUNNING, val=9.0), line("cut", RunState.INTERRUPTED, val=8.0),
    ]  # fmt: skip
    assert [one.name for one in in_order(lines, "val", descending=False)] == [
        "cut",
        "live",
        "c",
        "a",
        "b",
        "d",
    ]
    assert [one.name for one in in_order(lines, "val", descending=True)] == [
        "live",
        "cut",
        "a",
        "c",
        "b",
        "d",
    ]
    assert [one.name for one in in_order(lines, "name", descending=False)][2:] == ["a", "b", "c", "d"]


def test_every_column_shows_a_run_that_has_nothing() -> None:
    """A dash where nothing is known."""
    bare = RunSummary(run=RunDirectory(Path("/runs/x")), name="x", state=RunState.DAMAGED)
    assert {column.text(bare) for column in COLUMNS if column.number} == {"–"}
    assert set(SHOWN_FIRST) <= set(BY_KEY)
    for column in COLUMNS:
        in_order([bare, *LINES], column.key, descending=True)


def test_a_live_or_waiting_run_is_not_deleted() -> None:
    """Why not is a sentence with its name."""
    assert why_not_deleted(LINES) == ""
    assert "Stop it" in why_not_deleted([*LINES, line("live", RunState.RUNNING)])
    assert "queue" in why_not_deleted([line("next", RunState.WAITING)])
