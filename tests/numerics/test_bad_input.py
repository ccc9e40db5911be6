"""What a task may get wrong: each a sentence that names the thing, with nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.numerics.probes import Probe, probe, probe_loss, y
from tests.support.bad_losses import BAD_LOSSES, total
from trainer_backend.engine import (
    Accumulator,
    LossTerm,
    checkpoint_modules,
    make_optimizer,
    parameter_groups,
    windows,
)
from trainer_backend.errors import GradaccError


@pytest.mark.parametrize("what", BAD_LOSSES)
@pytest.mark.parametrize("later", [False, True])
def test_a_loss_that_is_wrong_gets_a_sentence(what: str, later: bool) -> None:
    """In the first micro-batch, and in one after others were right."""
    bad, words = BAD_LOSSES[what]
    model, accumulator = probe(loss=lambda m, b: bad(m, b) if b.numel() > 1 else probe_loss(m, b))
    with pytest.raises(GradaccError, match=words):
        accumulator.window([y(1.0), y(1.0, 2.0)] if later else [y(1.0, 2.0)])
    assert model.w.grad is None
    assert (model.w.item(), accumulator.step, accumulator.samples_seen) == (0.0, 0, 0)


def test_terms_whose_names_never_end_are_refused() -> None:
    """A name made anew for each batch would be a denominator of its own each time."""
    names = iter(f"loss {number}" for number in range(40))
    _, accumulator = probe(loss=lambda m, _: LossTerm(total(m), 1, next(names)))
    with pytest.raises(GradaccError, match="at most 16 can be told apart"):
        accumulator.window([y(1.0)] * 20)


def test_weights_that_were_counted_otherwise_are_refused() -> None:
    """`weights(batch)` and `loss()` must say the same denominator."""
    _, accumulator = probe(weights=lambda _: {"loss": 7})
    with pytest.raises(
        GradaccError, match=r"counted 7 for loss term 'loss', but loss\(\) returned a weight of 2"
    ):
        accumulator.window([y(1.0, 2.0)])


def test_a_task_without_a_loss_and_a_window_without_a_batch_are_refused() -> None:
    """Before anything runs."""
    model = Probe()
    with pytest.raises(GradaccError, match="no loss"):
        Accumulator(model, torch.optim.SGD(model.parameters(), 1.0), None)  # type: ignore[arg-type]
    _, accumulator = probe()
    with pytest.raises(GradaccError, match="at least one batch"):
        accumulator.window([])


def test_a_model_without_anything_to_train_is_refused() -> None:
    """All parameters frozen."""
    with pytest.raises(GradaccError, match="nothing to train"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), 0.1)


def test_a_module_name_that_does_not_exist_gets_the_nearest_one() -> None:
    """Of `task.activation_checkpointing`."""
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "decoder": nn.Linear(2, 2)})
    with pytest.raises(GradaccError, match=r"'encodr'.*nearest name is 'encoder'"):
        checkpoint_modules(model, ["encodr"])


def test_windows_refuse_a_count_of_zero_and_a_window_that_is_left() -> None:
    """Both would lose micro-batches without a word."""
    with pytest.raises(GradaccError, match="steps is 0"):
        next(windows([1, 2], 0))
    cut = windows([1, 2, 3], 2)
    next(cut)
    with pytest.raises(GradaccError, match="used up"):
        next(cut)


def test_an_exception_from_the_users_code_leaves_the_window_as_it_was() -> None:
    """Also a stop in the middle of a window: the partial window is replayed later."""

    class Stopped(BaseException):
        """As a stop now raises it."""

    def stream() -> Any:
        yield y(1.0)
        yield y(2.0)
        raise Stopped

    model, accumulator = probe()
    state = torch.get_rng_state()
    with pytest.raises(Stopped):
        accumulator.window(stream())
    assert model.w.grad is None
    assert torch.equal(state, torch.get_rng_state())
    assert accumulator.samples_seen == 0
    assert accumulator.window([y(1.0), y(2.0)]).step == 1


def test_state_that_does_not_fit_is_named() -> None:
    """A tensor that is missing or of another shape."""
    _, accumulator = probe(ema_decay=0.9)
    _, values = accumulator.state_dict()
    with pytest.raises(GradaccError, match=r"ema.w is missing, and \(\) is needed"):
        accumulator.load_state_dict({}, values)
    with pytest.raises(GradaccError, match=r"ema.w is \(3,\)"):
        accumulator.load_state_dict({"ema.w": torch.zeros(3)}, values)
    with pytest.raises(GradaccError, match="no average"):
        probe()[1].ema_decay = 0.5


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_state_saved_and_loaded_goes_on_bit_for_bit(precision: Any) -> None:
    """Masters, average, loss scale, c, counters and the optimizer, through JSON and named tensors."""
    import json

    from trainer_backend.engine import load_optimizer_state, optimizer_state

    def made() -> tuple[nn.Module, torch.optim.Optimizer, Accumulator]:
        torch.manual_seed(0)
        model = nn.Linear(6, 3, dtype=torch.bfloat16)
        optimizer = make_optimizer("adamw", parameter_groups(model, 0.1), learning_rate=1e-2)
        loss = lambda m, x: LossTerm(m(x).float().square().sum(), len(x))  # noqa: E731
        return (
            model,
            optimizer,
            Accumulator(
                model,
                optimizer,
                loss,
                precision=precision,
                ema_decay=0.9,
                max_grad_norm=1.0,
            ),
        )

    torch.manual_seed(1)
    data = [[torch.randn(n, 6, dtype=torch.bfloat16) for n in (5, 2)] for _ in range(4)]
    model, optimizer, accumulator = made()
    for window in data[:2]:
        accumulator.window(window)
    accumulator.micro_batch_ceiling = 3
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors, values = accumulator.state_dict()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    state, plain = optimizer_state(optimizer)
    state = {name: tensor.clone() for name, tensor in state.items()}
    values, plain = json.loads(json.dumps(values)), json.loads(json.dumps(plain))
    for window in data[2:]:
        accumulator.window(window)
    again, other, resumed = made()
    again.load_state_dict(kept)
    load_optimizer_state(other, state, plain)
    resumed.load_state_dict(tensors, values)
    for window in data[2:]:
        resumed.window(window)
    assert resumed.state_dict()[1] == accumulator.state_dict()[1]
    for (name, one), two in zip(
        accumulator.state_dict()[0].items(), resumed.state_dict()[0].values(), strict=True
    ):
        assert torch.equal(one, two), name
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


class Lone(torch.nn.Module):
    """One parameter."""

    def __init__(self, parameter: torch.Tensor) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(parameter)


@pytest.mark.parametrize(
    ("model", "make", "words"),
    [
        (lambda: torch.nn.Embedding(4, 2, sparse=True), torch.optim.SGD, "sparse = True"),
        (lambda: Lone(torch.zeros(2, dtype=torch.complex64)), torch.optim.SGD, "the parameter w is complex"),
        (lambda: torch.nn.Linear(2, 2), torch.optim.LBFGS, "LBFGS"),
    ],
)
def test_what_could_not_be_accumulated_is_refused_before_training(model: Any, make: Any, words: str) -> None:
    """Not in window 1, by an error of torch's own."""
    made = model()
    with pytest.raises(GradaccError) as caught:
        Accumulator(made, make(made.parameters(), lr=0.1), lambda _m, _b: LossTerm(torch.zeros(()), 1))
    assert words.lower() in str(caught.value).lower()
