"""The form's fields are read off the configuration's types; values go to text and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradacc_gui.recipe.field_specs import (
    ABSENT,
    FieldSpec,
    all_specs,
    read_number,
    text_of,
    toml_fault,
    value_of,
)
from trainer_backend.config import KINDS, RunConfig
from trainer_backend.config_check import section_types
from trainer_backend.published import number_text

FIELDS = sorted({(kind, path) for kind in KINDS for path in all_specs(kind)})
ANY_FIELD = st.sampled_from(FIELDS).map(lambda entry: all_specs(entry[0])[entry[1]])


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_field_of_the_configuration_has_a_title_and_a_help_text(kind: str) -> None:
    """Nobody has to guess what a field means."""
    bare = [spec.path for spec in all_specs(kind).values() if not spec.title or not spec.help]
    assert bare == []


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_field_of_the_configuration_is_left_out(kind: str) -> None:
    """All keys of all tables are fields, but for the kind itself and the free table of published values."""
    tables = {name: struct for name, struct in section_types(kind).items() if struct and name != "published"}
    expected = {
        f"{name}.{field.encode_name}"
        for name, struct in tables.items()
        for field in msgspec.structs.fields(struct)
    }
    assert set(all_specs(kind)) == expected - {"task.kind", "targets.metric"}


@pytest.mark.parametrize(("kind", "path"), FIELDS)
def test_a_default_shown_as_text_reads_back_as_the_default(kind: str, path: str) -> None:
    """What an untouched editor shows means what an untouched recipe means."""
    spec = all_specs(kind)[path]
    if spec.required:
        assert spec.default is ABSENT
        return
    read = value_of(spec, text_of(spec, spec.default))
    if spec.default is None:
        assert read is ABSENT
    else:
        assert read == msgspec.to_builtins(spec.default) or tuple(read) == spec.default


@given(spec=ANY_FIELD, text=st.text())
def test_no_text_in_any_field_raises(spec: FieldSpec, text: str) -> None:
    """Whatever is typed becomes a value that the check can speak about."""
    value_of(spec, text)
    toml_fault(text)


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_written_in_few_characters_is_the_same_number(value: float) -> None:
    """1e-08 is shown as 1e-8 and 0.0 as 0; nothing is rounded."""
    assert read_number(number_text(value)) == value


@pytest.mark.parametrize(
    "text", ["", "abc", "10^12", "1,000", "0x10", "\u0661", "nan", "inf", "1__0", "1" * 5000, "--4"]
)
def test_what_is_no_number_stays_text(text: str) -> None:
    """Never a silent guess: the check gets the text and says what would be right."""
    assert read_number(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), (" 8 ", 8), ("-4", -4), ("0.5", 0.5), ("3e-4", 3e-4), ("64_000", 64_000), (".5", 0.5)],
)
def test_numbers_are_read_as_toml_writes_them(text: str, value: float) -> None:
    """Whole numbers stay whole, so that 8 is not taken for 8.0."""
    read = read_number(text)
    assert read == value
    assert type(read) is type(value)


@given(items=st.lists(st.text(min_size=1)))
def test_a_list_of_texts_survives_commas_quotes_and_blanks(items: list[str]) -> None:
    """A prompt may hold any of them."""
    spec = all_specs("causal-lm")["task.generate"]
    assert value_of(spec, text_of(spec, items)) == items


@given(
    points=st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 10**6)), max_size=4),
)
def test_a_schedule_of_n_survives_its_text(points: list[tuple[int, int]]) -> None:
    """0: 4, 64000: 8 is two points."""
    spec = all_specs("custom")["accumulation.schedule"]
    value: list[dict[str, Any]] = [{"from_sample": sample, "steps": steps} for sample, steps in points]
    assert value_of(spec, text_of(spec, value)) == value


def test_choices_come_in_the_order_in_which_they_were_written() -> None:
    """The usual one first, not by the alphabet."""
    assert all_specs("custom")["run.precision"].choices == ("auto", "fp32", "bf16", "fp16")


def test_a_default_of_a_whole_run_is_what_the_fields_show() -> None:
    """One source: the fields' defaults are the configuration's own."""
    for path, spec in all_specs("language-model").items():
        if path == "accumulation.gradient_accumulation_steps":
            continue  # a whole run without a table for it has N = 4; the draft says so
        assert getattr(getattr(RunConfig(), spec.section), spec.name) == spec.default
