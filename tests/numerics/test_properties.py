"""Random lives of a run, against a reference that keeps all samples and runs one large batch."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.numerics.lives import Linear, NormedGPT, Run, Window, gpt_total, linear_total, live, lives


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """Each out-of-memory collects garbage; what the test's own imports made need not be looked through."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


policies = st.sampled_from(["skip", "drop"])
limits = st.sampled_from([None, 0.5])


@settings(max_examples=40)
@given(life=lives(largest=6, longest=6), policy=policies, limit=limits)
def test_the_linear_probe_gets_the_mean_of_all_its_samples(
    life: list[Window], policy: str, limit: float | None
) -> None:
    """Any sizes and weights, out of memory in each phase, NaN, kills: the gradients are the reference's."""

    def make() -> Run:
        model = Linear()
        return Run(
            model, torch.optim.SGD(model.parameters(), 1.0, momentum=0.5), linear_total,
            non_finite=policy, max_grad_norm=limit,
        )  # fmt: skip

    live(life, make, linear_total, policy, limit)


@pytest.mark.parametrize("normed", [False, True])
@settings(max_examples=12)
@given(life=lives(largest=4, longest=4), policy=policies, limit=limits)
def test_a_small_gpt_under_adamw_gets_the_reference_gradient_in_every_window(
    normed: bool, life: list[Window], policy: str, limit: float | None
) -> None:
    """The same at the weights that AdamW has led to.

    With BatchNorm the micro-batches as they ran are the definition; its buffers have seen each applied one.
    """

    def make() -> Run:
        torch.manual_seed(0)
        model = NormedGPT(normed=normed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
        return Run(model, optimizer, gpt_total, non_finite=policy, max_grad_norm=limit)

    live(life, make, gpt_total, policy, limit)
