"""What is typed is checked, and what would follow is previewed, before anything is asked."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradacc_gui.run import requests as steering
from trainer_backend.settings import Rule, Settings

SETTINGS = Settings(
    accumulation_steps=8,
    micro_batch_size=8,
    learning_rate=1e-3,
    beta2=0.95,
    weight_decay=0.1,
    ema_decay=0.999,
    max_grad_norm=1.0,
)


@pytest.mark.parametrize(
    "text", ["", " ", "abc", "0", "-4", "0.5", "1e3", "10" * 9, "1000001", "²", "٣", "1 2"]
)
def test_nonsense_for_n_gets_a_sentence_with_the_remedy(text: str) -> None:
    """Every refused text is answered by the range that would be right."""
    problem = steering.parse_count(text, "N")
    assert isinstance(problem, str)
    assert problem.startswith("N must be a whole number from 1 to 1,000,000")


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), (" 16 ", 16), ("1,000", 1000), ("1_000_000", 1_000_000)]
)
def test_a_whole_number_is_taken_however_it_is_grouped(text: str, value: int) -> None:
    """Blanks and separators are no slip."""
    assert steering.parse_count(text, "N") == value


@given(st.text(max_size=40))
def test_no_text_breaks_the_parsers(text: str) -> None:
    """A value in bounds or a sentence, for anything that can be typed or pasted."""
    count = steering.parse_count(text, "N")
    assert isinstance(count, str) or 1 <= count <= 1_000_000
    value = steering.parse_positive(text, "x")
    assert isinstance(value, str) or (0 < value <= 1e6 and math.isfinite(value))


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "0", "2e6", "one"])
def test_nonsense_for_a_learning_rate_gets_a_sentence(text: str) -> None:
    """NaN and infinity parse as numbers in Python; they are none here."""
    assert isinstance(steering.parse_positive(text, "The learning rate"), str)


def test_companions_keep_their_half_lives_in_samples() -> None:
    """beta2 ** kappa and rho ** kappa decay as much over two old steps as over one new one."""
    assert SETTINGS.kappa(16) == 2.0
    _, offered = steering.companions(SETTINGS, 16, "none")
    assert offered["beta2"].after == pytest.approx(0.95 * 0.95)
    assert offered["beta2"].text == "β₂ 0.95 → 0.9025"
    assert offered["weight_decay"].after == pytest.approx(0.2)
    assert offered["ema_decay"].after == pytest.approx(0.999**2)


def test_the_learning_rate_follows_only_the_rule_that_is_chosen() -> None:
    """none, square root of kappa, kappa."""
    rules: tuple[Rule, ...] = ("none", "sqrt", "linear")
    rates = [steering.companions(SETTINGS, 32, rule)[0].learning_rate for rule in rules]
    assert rates == pytest.approx([1e-3, 2e-3, 4e-3])


def test_what_a_run_does_not_have_is_not_offered() -> None:
    """SGD has no beta2, a run without EMA no decay of it, a decay of 0 stays 0."""
    bare = Settings(accumulation_steps=4, micro_batch_size=8, weight_decay=0.0)
    after, offered = steering.companions(bare, 8, "linear")
    assert offered == {}
    assert after == msgspec.structs.replace(bare, accumulation_steps=8)


def test_n_follows_a_new_micro_batch_only_where_it_divides() -> None:
    """64 = 4 x 16, but no whole N makes 64 of micro-batches of 7."""
    assert SETTINGS.steps_that_keep(4) == 16
    assert SETTINGS.steps_that_keep(7) is None
    two = msgspec.structs.replace(SETTINGS, world_size=2)
    assert two.steps_that_keep(16) == 4
    assert (two.steps_for(64), two.steps_for(72)) == (4, None)
