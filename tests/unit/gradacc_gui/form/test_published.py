"""As published beside as run here, and learning rates carried over."""

from __future__ import annotations

import pytest

from gradacc_gui.recipe.draft import Draft
from gradacc_gui.recipe.estimate import BATCH_PATH, N_PATH, Factors, converted
from gradacc_gui.recipe.published_rules import effective_batch_of, learning_rate_of, scaled
from trainer_backend.published import compare, leaves

PUBLISHED = {
    "source": "a paper",
    "optimizer": {"name": "lamb", "learning_rate": 1e-3, "betas": [0.9, 0.95]},
    "accumulation": {"effective_batch_size": 512},
    "results": {"validation_loss": 2.1},
}


def test_published_values_are_told_by_their_recipe_paths() -> None:
    """The source is about all of them, and is none of them."""
    assert [path for path, _ in leaves(PUBLISHED)] == [
        "optimizer.name",
        "optimizer.learning_rate",
        "optimizer.betas",
        "accumulation.effective_batch_size",
        "results.validation_loss",
    ]


def test_each_published_value_stands_beside_the_one_here() -> None:
    """With whether they are the same; what has no field here is shown too."""
    here = {"optimizer.name": "adamw", "optimizer.learning_rate": 0.001, "optimizer.betas": (0.9, 0.95)}
    rows = {entry.path: entry for entry in compare(PUBLISHED, "language-model", here)}
    assert (rows["optimizer.name"].published, rows["optimizer.name"].here) == ("lamb", "adamw")
    assert rows["optimizer.learning_rate"].same
    assert rows["optimizer.betas"].same
    assert rows["results.validation_loss"].here == "–"


@pytest.mark.parametrize(
    ("table", "batch"),
    [
        (PUBLISHED, 512),
        (
            {
                "accumulation": {"micro_batch_size": 4, "gradient_accumulation_steps": 8},
                "run": {"devices": 16},
            },
            512,
        ),
        ({"accumulation": {"micro_batch_size": 4}}, 4),
        ({"accumulation": {"effective_batch_size": "4k"}}, None),
        ({"accumulation": {"effective_batch_size": True}}, None),
        ({"accumulation": 3}, None),
        ({}, None),
    ],
)
def test_the_published_effective_batch_is_given_or_a_product(
    table: dict[str, object], batch: int | None
) -> None:
    """Papers report it either way."""
    assert effective_batch_of(table) == batch


def test_learning_rates_are_carried_over_by_name() -> None:
    """κ = 1/4: linear divides by 4, the square root by 2."""
    assert scaled(1e-3, 0.25, "linear") == 2.5e-4
    assert scaled(1e-3, 0.25, "sqrt") == 5e-4
    assert scaled(1e-3, 0.25, "none") == 1e-3
    assert learning_rate_of({"optimizer": {"learning_rate": "1e-3"}}) is None


def test_one_way_of_saying_n_becomes_the_other(draft: Draft) -> None:
    """4 micro-batches of 8 are an effective batch of 32, and back."""
    assert converted(draft, N_PATH, BATCH_PATH) == "32"
    assert converted(draft, "run.max_optimizer_steps", "run.max_samples") == "64000"
    assert converted(draft, "run.max_samples", "run.max_optimizer_steps") is None


def test_the_factors_of_a_schedule_of_n_are_those_at_its_start(draft: Draft) -> None:
    """N that the schedule sets at sample 0 is the one that runs first."""
    draft.set_text("accumulation.schedule", "0: 2, 640: 16")
    factors = Factors(draft)
    assert (factors.micro_batch, factors.steps, factors.world, factors.effective) == (8, 2, 1, 16)


def test_a_factor_that_is_not_right_leaves_the_product_open(draft: Draft) -> None:
    """Never a number computed from nonsense."""
    draft.set_text("accumulation.micro_batch_size", "0.5")
    factors = Factors(draft)
    assert (factors.micro_batch, factors.steps, factors.effective) == (None, 4, None)
