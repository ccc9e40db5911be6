"""The engine as a library: the ten lines in its documentation do what they say."""

from __future__ import annotations

import doctest

import torch

from trainer_backend import engine


def test_the_ten_lines_of_the_documentation_run() -> None:
    """As they stand in the package's own text."""
    torch.manual_seed(0)
    assert doctest.testmod(engine).failed == 0
    assert doctest.testmod(engine).attempted >= 9


def test_all_that_is_offered_is_there() -> None:
    """Every public name exists and says what it is."""
    for name in engine.__all__:
        assert getattr(engine, name).__doc__, name
