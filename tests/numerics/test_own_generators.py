"""Generators of random numbers that user code holds: found, kept in checkpoints, taken back, seeded."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trainer_backend.engine.own_generators import OwnGenerator, is_generator, own_generators

MAKERS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.Generator().manual_seed(3),
    "python": lambda: random.Random(3),  # noqa: S311
    "numpy": lambda: np.random.default_rng(3),
    "philox": lambda: np.random.Generator(np.random.Philox(3)),
    "legacy": lambda: np.random.RandomState(3),
}


def draws(generator: Any) -> list[float]:
    """Three normal numbers: of those some generators keep a second one."""
    if isinstance(generator, torch.Generator):
        return torch.randn(3, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(3)]
    return [float(generator.standard_normal()) for _ in range(3)]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_is_kept_packed_and_taken_back(kind: str) -> None:
    """Also amid a pair of normal numbers; a seed gives the same numbers again."""
    own = OwnGenerator("x", MAKERS[kind]())
    draws(own.generator)
    state, packed = own.get_state(), own.packed()
    after = draws(own.generator)
    own.set_state(state)
    assert draws(own.generator) == after
    other = OwnGenerator("x", MAKERS[kind]())
    other.unpack(packed)
    assert draws(other.generator) == after
    own.seed(2**63 + 5)
    other.seed(2**63 + 5)
    assert draws(own.generator) == draws(other.generator) != after


def test_they_are_found_wherever_user_code_keeps_them() -> None:
    """Attributes of attributes, lists, dicts, closures, partials, bound methods, modules; each once."""
    made = {kind: make() for kind, make in MAKERS.items()}

    class Transform:
        def __init__(self) -> None:
            self.steps = [SimpleNamespace(numbers=made["numpy"])]

        def __call__(self, x: Any) -> Any:
            return x

    module = nn.Sequential(nn.Linear(1, 1))
    module[0].noise = made["torch"]
    held = made["legacy"]

    def collate(samples: list[Any]) -> Any:
        return held.permutation(len(samples))

    data = SimpleNamespace(dataset=SimpleNamespace(transform=Transform()), itself=made["numpy"])
    data.round = data  # a cycle
    partial = functools.partial(print, made["python"])
    method = SimpleNamespace(read={"numbers": made["philox"]}, loss=None)
    found = list(own_generators(module, data, collate, partial, method))
    assert {id(own.generator) for own in found} == {id(value) for value in made.values()}
    assert len(found) == len(made)
    assert found[0].path == "Sequential.0.noise"


def test_global_generators_are_nobodys_own() -> None:
    """They are seeded and kept by name; the system's source has no state."""
    assert not is_generator(torch.default_generator)
    assert not is_generator(random._inst)
    assert not is_generator(np.random.mtrand._rand)
    assert not is_generator(random.SystemRandom())
    assert not is_generator(3)
