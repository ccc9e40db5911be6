"""What one optimizer step's gradient is: every row of the table of right values, with further numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.numerics.probes import (
    RELATIVE,
    Probe,
    SmallGPT,
    Tokens,
    gpt_loss,
    joined,
    large_batch_gradient,
    probe,
    probe_loss,
    relative_error,
    rows,
    y,
)
from trainer_backend.engine import (
    Accumulator,
    LossTerm,
    WindowTotals,
    auxiliary,
    make_optimizer,
    parameter_groups,
    windows,
)
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Warned


def idle(model: nn.Module, loss: object, **options: object) -> Accumulator:
    """An engine whose gradients are looked at."""
    return Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("valid", [(7, 2, 11, 4), (1, 16), (3, 0, 5), (16, 1, 1, 1, 9, 2, 8)])
def test_a_mean_over_tokens_has_the_gradient_of_the_one_large_batch(valid: tuple[int, ...]) -> None:
    """Ragged rows, one a micro-batch: every valid token weighs the same."""
    torch.manual_seed(0)
    model = SmallGPT(context=16)
    batches = rows(valid)
    gradients, result = idle(model, gpt_loss).gradients(batches)
    right = large_batch_gradient(model, lambda: gpt_loss(model, joined(batches)))
    assert relative_error(gradients, right) <= RELATIVE
    assert result.weight == sum(valid)
    whole = gpt_loss(model, joined(batches))
    assert result.loss == pytest.approx(float(whole.total.detach()) / sum(valid), rel=RELATIVE)


@pytest.mark.parametrize("sizes", [(8, 8, 8), (5, 3, 1), (1, 13)])
@pytest.mark.parametrize("given_as", ["int", "float", "tensor"])
def test_a_short_last_micro_batch_counts_by_its_samples(sizes: tuple[int, ...], given_as: str) -> None:
    """A mean over samples, whatever the weight is given as."""
    torch.manual_seed(1)
    model = nn.Linear(4, 3).double()
    data = [(torch.randn(n, 4).double(), torch.randint(3, (n,))) for n in sizes]

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> LossTerm:
        total = functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        many = len(batch[1])
        ways: dict[str, float | torch.Tensor] = {
            "int": many, "float": float(many), "tensor": torch.tensor(many)
        }  # fmt: skip
        weight = ways[given_as]
        return LossTerm(total, weight)

    gradients, _ = idle(model, loss).gradients(data)
    whole = (torch.cat([x for x, _ in data]), torch.cat([t for _, t in data]))
    assert relative_error(gradients, large_batch_gradient(model, lambda: loss(model, whole))) <= RELATIVE


@pytest.mark.parametrize(
    ("many", "steps", "expected"), [(11, 4, [4, 4, 3]), (7, 3, [3, 3, 1]), (4, 4, [4]), (2, 5, [2])]
)
@pytest.mark.parametrize("sized", [True, False])
def test_an_epochs_tail_is_divided_by_its_own_weight_and_nothing_crosses(
    many: int, steps: int, expected: list[int], sized: bool
) -> None:
    """Two epochs; digits of the update tell which micro-batches entered it, with or without a length."""
    model, accumulator = probe()
    data = [y(10.0**i) for i in range(many)]
    for _ in range(2):
        start = 0
        epoch: list[torch.Tensor] | Iterator[torch.Tensor] = data if sized else iter(data)
        lengths = []
        for window in windows(epoch, steps):
            nn.init.zeros_(model.w)  # so that the update is not the small difference of large weights
            result = accumulator.window(window)
            lengths.append(result.micro_batches)
            right = sum(10.0**i for i in range(start, start + result.micro_batches)) / result.micro_batches
            assert model.w.item() == pytest.approx(right, rel=RELATIVE)
            start += result.micro_batches
        assert lengths == expected
    assert accumulator.samples_seen == 2 * many


def test_a_dropped_tail_is_not_used_and_a_carried_one_goes_on_into_the_next_epoch() -> None:
    """The other two ways with what is left of an epoch."""
    assert [len(list(w)) for w in windows(range(11), 4, tail="drop")] == [4, 4]
    carried = [list(w) for w in windows(itertools.chain(range(5), range(5)), 4)]
    assert carried == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]


@pytest.mark.parametrize(("before", "after"), [(5, 2), (1, 7), (3, 1)])
def test_n_asked_inside_a_window_holds_from_the_next(before: int, after: int) -> None:
    """N is read once, at a window's start."""
    asked = before
    model, accumulator = probe()

    def stream() -> Iterator[torch.Tensor]:
        nonlocal asked
        for i in range(before + 2 * after):
            if i == before - 1:
                asked = after
            yield y(10.0**i)

    results = [accumulator.window(window) for window in windows(stream(), lambda: asked)]
    assert [result.micro_batches for result in results] == [before, after, after]
    assert model.w.item() == pytest.approx(
        sum(10.0**i for i in range(before)) / before
        + sum(10.0**i for i in range(before, before + 2 * after)) / after,
        rel=RELATIVE,
    )


@pytest.mark.parametrize("empty", [0, 1, 3])
def test_a_micro_batch_without_a_valid_token_changes_nothing_else(empty: int) -> None:
    """Its mean would be 0/0; its total here is NaN on purpose, and has no weight."""
    model, accumulator = probe(
        loss=lambda m, b: LossTerm(-(m.w * b).sum() if b.numel() else m.w * float("nan"), b.numel())
    )
    batches = [y(3.0), y(5.0, 1.0), y(7.0)]
    batches.insert(empty, y())
    result = accumulator.window(batches)
    assert model.w.item() == pytest.approx(4.0, rel=RELATIVE)
    assert (result.weight, result.micro_batches, result.loss) == (4.0, 4, 0.0)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize(
    ("before", "empty"), [((4, 2), (0, 0, 0)), ((1,), (0,)), ((16, 3, 5, 2), (0, 0, 0, 0, 0))]
)
def test_a_window_without_any_valid_token_is_empty(
    name: str, before: tuple[int, ...], empty: tuple[int, ...]
) -> None:
    """No step, no decay, no moment, no average; the samples are consumed, and the next window is exact."""
    torch.manual_seed(2)
    model = SmallGPT(context=16)
    optimizer = make_optimizer(name, model.parameters(), learning_rate=0.1, weight_decay=0.5, momentum=0.9)
    accumulator = Accumulator(model, optimizer, gpt_loss, ema_decay=0.5)
    accumulator.window(rows(before))
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    tensors, _ = accumulator.state_dict()
    averages = {key: value.clone() for key, value in tensors.items()}
    state = {k: {n: v.clone() for n, v in s.items()} for k, s in optimizer.state.items()}
    result = accumulator.window(rows(empty))
    assert (result.skipped, result.loss, result.gradient_norm, result.weight) == ("empty", None, None, 0.0)
    assert (result.updates, result.step) == (1, 2)
    assert accumulator.samples_seen == len(before) + len(empty)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert all(torch.equal(averages[key], value) for key, value in accumulator.state_dict()[0].items())
    assert all(torch.equal(v, optimizer.state[k][n]) for k, s in state.items() for n, v in s.items())
    following, _ = accumulator.gradients(rows(before, seed=1))
    right = large_batch_gradient(model, lambda: gpt_loss(model, joined(rows(before, seed=1))))
    assert relative_error(following, right) <= RELATIVE


@pytest.mark.parametrize(
    ("means", "limit", "update"),
    [((6.0, -4.0), 1.0, 1.0), ((30.0, 10.0), 5.0, 5.0), ((3.0, 1.0, -1.0), 4.0, 1.0)],
)
def test_clipping_comes_after_averaging(means: tuple[float, ...], limit: float, update: float) -> None:
    """Micro-batches of 6 and −4 average to 1; each clipped before would give 0."""
    model, accumulator = probe(max_grad_norm=limit)
    result = accumulator.window([y(mean) for mean in means])
    assert model.w.item() == pytest.approx(update, rel=RELATIVE)
    assert result.gradient_norm == pytest.approx(abs(sum(means) / len(means)), rel=RELATIVE)


def test_a_changed_clipping_limit_holds_from_the_next_window() -> None:
    """`max_grad_norm` may be set between windows."""
    model, accumulator = probe(max_grad_norm=1.0)
    accumulator.window([y(8.0)])
    accumulator.max_grad_norm = None
    accumulator.window([y(8.0)])
    assert model.w.item() == pytest.approx(9.0, rel=RELATIVE)


@pytest.mark.parametrize(("decay", "rate", "many"), [(0.1, 0.5, 1), (0.25, 0.1, 4), (0.01, 1.0, 9)])
def test_weight_decay_comes_once_a_window(decay: float, rate: float, many: int) -> None:
    """A zero gradient leaves w·(1 − lr·λ), however many micro-batches there were."""
    model = Probe()
    nn.init.constant_(model.w, 2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    probe_of = Accumulator(model, optimizer, probe_loss)
    probe_of.window([y(0.0)] * many)
    assert model.w.item() == pytest.approx(2.0 * (1 - rate * decay), rel=RELATIVE)


@pytest.mark.parametrize(
    ("warmup", "size", "windows_of"),
    [(96, 2, (4, 8, 2, 8)), (30, 3, (1, 5, 2, 4)), (1000, 1, (7, 70, 3, 1000))],
)
def test_the_learning_rate_is_that_of_the_samples_at_the_windows_end(
    warmup: int, size: int, windows_of: tuple[int, ...]
) -> None:
    """Warm-up over 96 samples, micro-batches of 2, N = 4, then 8, then 2: it enters the update linearly."""
    model, accumulator = probe()
    group = accumulator.optimizer.param_groups[0]

    def warm_up(totals: WindowTotals) -> None:
        group["lr"] = min(1.0, totals.samples_seen / warmup)

    expected = 0.0
    seen = 0
    for steps in windows_of:
        accumulator.window([y(*[1.0] * size)] * steps, before_step=warm_up)
        seen += size * steps
        expected += min(1.0, seen / warmup)
    assert model.w.item() == pytest.approx(expected, rel=RELATIVE)
    assert accumulator.samples_seen == size * sum(windows_of)


@pytest.mark.parametrize(("updates", "steps"), [(5, 3), (2, 7), (4, 1)])
def test_updates_are_windows_not_micro_batches(updates: int, steps: int) -> None:
    """5 updates at N = 3 use 15 micro-batches."""
    _, accumulator = probe()
    seen = []
    for window in windows((y(1.0) for _ in itertools.count()), steps):
        result = accumulator.window(window)
        seen.append(result.micro_batches)
        if result.updates == updates:
            break
        assert result.updates == result.step
    assert (len(seen), sum(seen)) == (updates, updates * steps)


@pytest.mark.parametrize("class_weights", [(1.0, 4.0, 0.5), (0.1, 1.0, 1.0), (2.0, 0.0, 3.0)])
def test_class_weights_are_the_denominator(class_weights: tuple[float, ...]) -> None:
    """D is the sum of each target's weight, so the result is torch's own weighted mean."""
    torch.manual_seed(3)
    model = nn.Linear(4, 3).double()
    weight = torch.tensor(class_weights).double()
    data = [(torch.randn(n, 4).double(), torch.randint(3, (n,))) for n in (6, 2, 5)]

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> LossTerm:
        x, target = batch
        total = functional.cross_entropy(model(x), target, weight=weight, reduction="sum")
        return LossTerm(total, weight[target].sum())

    gradients, _ = idle(model, loss).gradients(data)
    x, target = torch.cat([x for x, _ in data]), torch.cat([t for _, t in data])
    mean = functional.cross_entropy(model(x), target, weight=weight)
    right = dict(zip(("weight", "bias"), torch.autograd.grad(mean, [model.weight, model.bias]), strict=True))
    assert relative_error(gradients, right) <= RELATIVE


@pytest.mark.parametrize("smoothing", [0.1, 0.3, 0.9])
def test_label_smoothing_has_the_large_batchs_gradient(smoothing: float) -> None:
    """With padding that does not count."""
    torch.manual_seed(4)
    model = SmallGPT(context=16)
    batches = rows([5, 12, 1], seed=3)

    def loss(model: nn.Module, batch: Tokens) -> LossTerm:
        logits = model(batch.x).flatten(0, 1)
        total = functional.cross_entropy(
            logits, batch.target.flatten(), reduction="sum", ignore_index=-1, label_smoothing=smoothing
        )
        return LossTerm(total, int((batch.target != -1).sum()))

    gradients, _ = idle(model, loss).gradients(batches)
    right = large_batch_gradient(model, lambda: loss(model, joined(batches)))
    assert relative_error(gradients, right) <= RELATIVE


def balance(model: nn.Module, x: torch.Tensor) -> list[LossTerm]:
    """A mean square, and an auxiliary loss of the micro-batch as a whole that is not linear in samples."""
    out = model(x)
    main = LossTerm(out.square().sum(), len(x))
    return [main, auxiliary(out.softmax(-1).mean(0).square().sum(), main, "balance")]


@pytest.mark.parametrize("many", [1, 2, 5])
def test_an_auxiliary_loss_of_identical_micro_batches_does_not_depend_on_n(many: int) -> None:
    """Identical rows in every micro-batch: loss and gradient are those of one."""
    torch.manual_seed(5)
    model = nn.Linear(4, 3).double()
    x = torch.randn(6, 4).double()
    gradients, result = idle(model, balance).gradients([x] * many)
    right = large_batch_gradient(model, lambda: balance(model, x))
    assert relative_error(gradients, right) <= RELATIVE
    alone = balance(model, x)
    assert result.terms["balance"] == pytest.approx(float(alone[1].total.detach()) / 6, rel=RELATIVE)


@pytest.mark.parametrize("sizes", [(2, 5), (1, 1, 8), (3, 3, 3)])
def test_an_auxiliary_loss_is_the_weighted_mean_over_micro_batches(sizes: tuple[int, ...]) -> None:
    """In general: its stated definition, not the large batch's."""
    torch.manual_seed(6)
    model = nn.Linear(4, 3).double()
    data = [torch.randn(n, 4).double() for n in sizes]
    gradients, _ = idle(model, balance).gradients(data)

    def stated() -> list[LossTerm]:
        parts = [balance(model, x) for x in data]
        return [
            LossTerm(torch.stack([part[i].total for part in parts]).sum(), sum(sizes), str(i)) for i in (0, 1)
        ]

    assert relative_error(gradients, large_batch_gradient(model, stated)) <= RELATIVE


def two_denominators(model: nn.Module, batch: Tokens) -> list[LossTerm]:
    """Tokens for one term, samples for another, and a third that shares the first's denominator."""
    logits = model(batch.x)
    main = gpt_loss(model, batch)
    squares = torch.logsumexp(logits, -1).square()
    return [
        main,
        LossTerm(logits[:, 0].square().sum(), len(batch.x), "first-token"),
        LossTerm((squares * (batch.target != -1)).sum(), main.weight, "z"),
    ]


def counted_ahead(batch: Tokens) -> dict[str, float]:
    """The same denominators before the forward."""
    tokens = int((batch.target != -1).sum())
    return {"loss": tokens, "first-token": len(batch.x), "z": tokens}


@pytest.mark.parametrize("valid", [(7, 2, 11), (0, 3, 9), (5, 0), (0, 0)])
@pytest.mark.parametrize("ahead", [True, False])
def test_each_term_is_over_its_own_denominator(valid: tuple[int, ...], ahead: bool) -> None:
    """Counted before the first backward, or gathered in a buffer of its own: the same gradient."""
    torch.manual_seed(7)
    model = SmallGPT(context=16)
    batches = rows(valid, seed=5)
    batches.append(joined(rows([4, 1] if sum(valid) else [0, 0], seed=6)))
    accumulator = idle(model, two_denominators, weights=counted_ahead if ahead else None)
    gradients, result = accumulator.gradients(batches)
    right = large_batch_gradient(model, lambda: two_denominators(model, joined(batches)))
    assert relative_error(gradients, right) <= RELATIVE
    again, _ = accumulator.gradients(reversed(batches))
    assert relative_error(again, right) <= RELATIVE
    assert result.loss == pytest.approx(
        sum(
            float(t.total.detach()) / float(t.weight)
            for t in two_denominators(model, joined(batches))
            if t.weight
        ),
        rel=RELATIVE,
    )


@pytest.mark.parametrize("names", [["blocks.0"], ["blocks.*.down", "norm"], ["blocks.0", "blocks.1"]])
def test_recomputed_activations_give_equal_gradients(names: list[str]) -> None:
    """With dropout: the recomputation uses the same masks."""
    from trainer_backend.engine import checkpoint_modules

    found = []
    for recompute in (False, True):
        torch.manual_seed(8)
        model = SmallGPT(context=16, dropout=0.3)
        if recompute:
            checkpoint_modules(model, names)
        torch.manual_seed(9)
        found.append(idle(model, gpt_loss).gradients(rows([7, 3, 16]))[0])
    assert relative_error(found[1], found[0]) <= RELATIVE
    assert set(found[0]) == set(found[1])


def test_parameter_groups_leave_norms_and_biases_out_of_decay() -> None:
    """Once a window, and only for matrices; all of them where a task asks for that."""
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).double()
    groups = parameter_groups(model, 0.5)
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.5), (3, 0.0)]
    assert [len(group["params"]) for group in parameter_groups(model, 0.5, decay_all=True)] == [4]


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99])
def test_the_average_of_the_weights_moves_once_an_update(decay: float) -> None:
    """ema ← ρ·ema + (1 − ρ)·w, after the update; and it is what evaluation sees."""
    model, accumulator = probe(ema_decay=decay)
    weight = average = 0.0
    for mean in (1.0, 2.0, -5.0):
        accumulator.window([y(mean), y(mean)])
        weight += mean
        average = decay * average + (1 - decay) * weight
    with accumulator.averaged():
        assert model.w.item() == pytest.approx(average, rel=RELATIVE)
    assert model.w.item() == pytest.approx(weight, rel=RELATIVE)


def test_gradients_left_by_others_do_not_leak_into_a_window() -> None:
    """A stale `.grad` is forgotten at the start, and none is left at the end."""
    model, accumulator = probe()
    model.w.grad = torch.tensor(1e6, dtype=torch.float64)
    accumulator.window([y(1.0), y(3.0)])
    assert getattr(model.w, "grad") is None  # noqa: B009 - the type checker still sees the line above
    assert model.w.item() == pytest.approx(2.0, rel=RELATIVE)


@pytest.mark.parametrize("how", ["in place", "numpy", "pop", "data"])
def test_a_loss_that_changes_its_batch_changes_no_replay(how: str) -> None:
    """Taken out of its container or written over, also where torch does not see it; said once."""
    facts: list[Any] = []
    failures = iter([False, True, *[False] * 20])

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> list[LossTerm]:
        assert isinstance(model, Probe)
        values = batch.pop("y") if how == "pop" else batch["y"]
        match how:
            case "in place":
                values.mul_(0.5)
            case "numpy":
                values.numpy()[:] *= 0.5
            case "data":
                values.data.mul_(0.5)
            case _:
                values = values * 0.5
        if next(failures):
            raise torch.OutOfMemoryError("made up")
        return [LossTerm(-(model.w * values).sum(), values.numel()), LossTerm(-model.w * 2.0, 1.0, "aux")]

    _, accumulator = probe(loss=loss, on_fact=facts.append)
    window = [{"y": y(4.0, 8.0)}, {"y": y(12.0, 16.0)}]
    gradients, result = accumulator.gradients(window)
    assert gradients["w"].item() == -(5.0 + 2.0)
    assert result.out_of_memory
    gradients, _ = accumulator.gradients(window)
    assert gradients["w"].item() == -(5.0 + 2.0)
    assert [fact.code for fact in facts if isinstance(fact, Warned)] == (
        [] if how == "pop" else ["loss-changes-batch"]
    )


def test_a_loss_that_begins_to_change_its_batch_is_refused() -> None:
    """After the first window only the tensors' versions are compared: no copies in the usual case."""
    calls = iter(range(9))

    def loss(model: nn.Module, values: torch.Tensor) -> LossTerm:
        assert isinstance(model, Probe)
        if next(calls) == 2:
            values.mul_(2)
        return LossTerm(-(model.w * values).sum(), values.numel())

    _, accumulator = probe(loss=loss)
    accumulator.window([y(1.0), y(2.0)])
    with pytest.raises(GradaccError, match="changed its batch in place"):
        accumulator.window([y(1.0), y(2.0)])


class OwnDropout(nn.Module):
    """Scales its one parameter by numbers from a generator of its own, and keeps count in a late buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, y_b: torch.Tensor) -> torch.Tensor:
        """Minus w times y times a draw."""
        if not hasattr(self, "late"):
            self.late = nn.Module()
            self.late.register_buffer("calls", torch.zeros(()))
        self.late.get_buffer("calls").add_(1)
        return -(self.w * y_b * torch.rand(y_b.shape, generator=self.generator, dtype=torch.float64)).sum()


def test_what_a_window_draws_and_counts_is_taken_back_with_it() -> None:
    """A generator of the module's own, and a buffer of a module that came later, in a replay too."""
    model = OwnDropout()

    def loss(net: nn.Module, y_b: torch.Tensor) -> LossTerm:
        return LossTerm(net(y_b), y_b.numel())

    accumulator = Accumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), loss)
    accumulator.window([y(1.0)])
    window = [y(1.0, 2.0), y(3.0)]
    first, _ = accumulator.gradients(window)
    again, _ = accumulator.gradients(window)
    assert torch.equal(first["w"], again["w"])
    assert model.late.get_buffer("calls").item() == 1.0


def test_global_generators_that_are_first_used_late_are_taken_back_to_their_own_window() -> None:
    """Python's and NumPy's: used for the first time in window 5, and replayed in window 6."""
    import random

    import numpy as np

    drawn: list[tuple[float, float]] = []
    uses = iter([False] * 4 + [True] * 9)

    def loss(net: nn.Module, y_b: torch.Tensor) -> LossTerm:
        assert isinstance(net, Probe)
        if next(uses):
            drawn.append((random.random(), np.random.normal()))  # noqa: S311, NPY002 - users' code does
        return LossTerm(-(net.w * y_b).sum(), y_b.numel())

    _, accumulator = probe(loss=loss)
    for _ in range(5):
        accumulator.window([y(1.0)])
    for _ in range(3):
        accumulator.gradients([y(1.0)])
    assert len(drawn) == 4
    assert drawn[1] == drawn[2] == drawn[3]
    assert drawn[0] != drawn[1]
