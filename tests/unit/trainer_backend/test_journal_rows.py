"""Events keep every value on their way through the journal's tables."""

# ruff: noqa: S608 - the names of tables are those of our own types
from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.support.events import events, same
from trainer_backend.journal import open_for_writing
from trainer_backend.journal_rows import (
    body_of,
    fact_of,
    insert,
    row_of,
    storable,
    without_nan_text,
)
from trainer_backend.journal_trust import LARGEST_NUMBER, measurement_of
from trainer_backend.protocol import (
    FACTS,
    MEASUREMENTS,
    AccumulationChanged,
    Event,
    Record,
    SettingChanged,
    Warned,
    record_json,
)

PLACES = ("step", "index", "samples_seen")
"""What a reader refuses beyond what a run can count."""
KEPT = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def tables(tmp_path: Path) -> Any:
    """A journal's tables, empty."""
    connection = open_for_writing(tmp_path / "run.sqlite")
    yield connection
    connection.close()


@pytest.mark.parametrize("kind", MEASUREMENTS)
@KEPT
@given(data=st.data())
def test_a_measurement_comes_out_of_its_table_as_it_went_in(
    tables: sqlite3.Connection, kind: type[Event], data: st.DataObject
) -> None:
    """NaN, infinities, None, negative zero and long whole numbers included."""
    event = data.draw(events(kind))
    places = {name: abs(getattr(event, name)) % LARGEST_NUMBER for name in PLACES if hasattr(event, name)}
    event = msgspec.structs.replace(event, **places)
    assume("NaN" not in msgspec.structs.astuple(event))  # that word is the tables' NaN; no code is called so
    tables.execute(f"DELETE FROM {kind.__name__}")
    insert(tables, kind, [row_of(1, 1, 0.5, event)])

    (row,) = without_nan_text(tables.execute(f"SELECT * FROM {kind.__name__}").fetchall())

    assert row[:3] == (1, 1, 0.5)
    assert same(measurement_of(kind, row).event, event)


@pytest.mark.parametrize("kind", FACTS.values(), ids=FACTS)
@KEPT
@given(data=st.data())
def test_a_fact_comes_out_of_its_json_as_it_went_in(kind: type[Any], data: st.DataObject) -> None:
    """A name such as "NaN" stays a name, and a number that is NaN stays a number."""
    event = data.draw(events(kind))

    assert same(fact_of(kind.__name__, body_of(event)), event)


def test_a_fact_of_a_kind_that_is_not_known_is_passed_over() -> None:
    """A newer gradacc may have written it; the others are still read."""
    assert fact_of("Teleported", "{}") is None


def test_a_fact_that_lacks_what_is_now_required_is_passed_over() -> None:
    """A much older gradacc may have written it."""
    assert fact_of("Paused", '{"step": 3}') is None


@pytest.mark.parametrize(
    ("given_value", "kept"),
    [
        (2**64 - 1, float(2**64 - 1)),
        (-(2**70), float(-(2**70))),
        ("\udc80", "?"),
        (object, str(object)),
        ({"a": 1.5}, '{"a": 1.5}'),
    ],
)
def test_a_value_that_sqlite_cannot_take_is_kept_as_near_as_can_be(given_value: Any, kept: Any) -> None:
    """So that one odd value never keeps the events around it from the disk."""
    assert storable(given_value) == kept


def test_a_fact_may_hold_text_that_is_no_valid_unicode() -> None:
    """Paths may; the journal keeps them."""
    event = Warned(code="odd", values={"path": "data-\udc80"})

    assert fact_of("Warned", body_of(event)) == event


def test_such_text_is_told_as_json_too() -> None:
    """`show --json` prints it, escaped."""
    record = Record(1, 1, 0.5, Warned(code="odd", values={"path": "data-\udc80"}))

    assert json.loads(record_json(record))["values"] == {"path": "data-\udc80"}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("AccumulationChanged", {"before": 4, "after": 8}),
        ("SettingChanged", {"before": 1, "after": 2, "key": "k"}),
    ],
)
def test_a_change_in_an_older_journal_has_no_sample(kind: str, values: dict[str, Any]) -> None:
    """Written before `samples_seen` was told; it loads all the same."""
    body = {"command_id": None, "step": 3, "asked_by": "ada", "asked_at": 0.5} | values
    change = fact_of(kind, json.dumps(body))
    assert isinstance(change, AccumulationChanged | SettingChanged)
    assert (change.step, change.samples_seen) == (3, None)
