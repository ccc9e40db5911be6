"""What every optimizer must do: skip without a trace, come back bit for bit, keep fp32 masters."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn

from trainer_backend.engine import (
    Accumulator,
    LossTerm,
    embeddings_of,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    parameter_groups,
)
from trainer_backend.engine.muon import MuonWithAdamW
from trainer_backend.errors import UsageError
from trainer_backend.optimizer_table import OPTIMIZERS

ON_CPU = [name for name, row in OPTIMIZERS.items() if not row.needs_cuda]
EVERYWHERE = [
    pytest.param(name, "cuda" if row.needs_cuda else "cpu", marks=[pytest.mark.gpu] if row.needs_cuda else [])
    for name, row in OPTIMIZERS.items()
]
NAN = float("nan")


class Net(nn.Module):
    """An embedding, a matrix large enough for a state in 8 bits, a norm, biases."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(8, 64)
        self.inner = nn.Linear(64, 96)
        self.norm = nn.LayerNorm(96)
        self.head = nn.Linear(96, 1)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """(b,) of int64 to (b,)."""
        hidden: torch.Tensor = self.head(self.norm(torch.tanh(self.inner(self.table(numbers)))))
        return hidden.squeeze(1)


def loss(model: nn.Module, batch: torch.Tensor) -> LossTerm:
    """(b, 2): a number of the table and what to predict; without a sample there is nothing to learn."""
    error = model(batch[:, 0].long()).float() - batch[:, 1].float()
    return LossTerm(error.square().sum(), len(batch))


def micro_batches(window: int, *, count: int = 3) -> list[torch.Tensor]:
    """Ragged micro-batches, others in each window."""
    source = torch.Generator().manual_seed(window)
    return [
        torch.stack(
            [torch.randint(8, (size,), generator=source).float(), torch.randn(size, generator=source)], dim=1
        )
        for size in range(2, 2 + count)
    ]


def engine(name: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32, **how: Any) -> Accumulator:
    """A net under an optimizer as a run makes it."""
    model = Net().to(device, dtype)
    rate = {"lars": 1.0, "sgd": 0.1}.get(name, 1e-2)
    optimizer = make_optimizer(
        name, parameter_groups(model, 0.1), learning_rate=rate, momentum=0.9, embeddings=embeddings_of(model)
    )
    return Accumulator(model, optimizer, loss, **how)


def everything(accumulator: Accumulator) -> dict[str, torch.Tensor]:
    """Weights, masters and optimizer state, copied."""
    weights = {f"model.{name}": value for name, value in accumulator.model.state_dict().items()}
    copies, _ = accumulator.state_dict()
    state, plain = optimizer_state(accumulator.optimizer)
    numbers = {
        f"plain.{name}": torch.tensor(value)
        for name, value in plain["state"].items()
        if isinstance(value, int | float)
    }
    return {name: value.clone() for name, value in (weights | copies | state | numbers).items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    differing = [name for name in one if not torch.equal(one[name], other[name])]
    assert differing == []


@pytest.mark.parametrize(("name", "device"), EVERYWHERE)
@pytest.mark.parametrize("why", ["empty", "non-finite"])
def test_a_skipped_window_leaves_weights_and_state_untouched(name: str, device: str, why: str) -> None:
    """The first one and a later one; training goes on as if they had not been."""
    undisturbed, accumulator = engine(name, device=device), engine(name, device=device)
    bad = [torch.zeros(0, 2)] if why == "empty" else [micro_batches(9)[0], torch.tensor([[1.0, NAN]])]
    undisturbed.window(micro_batches(1))
    for window in range(3):
        before = everything(accumulator)
        groups = copy.deepcopy([
            {key: value for key, value in group.items() if key != "params"}
            for group in accumulator.optimizer.param_groups
        ])  # fmt: skip
        result = accumulator.window(bad)
        accumulator.flush()
        assert result.skipped == why
        assert_equal(before, everything(accumulator))
        assert groups == [
            {key: value for key, value in group.items() if key != "params"}
            for group in accumulator.optimizer.param_groups
        ]
        accumulator.window(micro_batches(window + 1))
        if window:
            undisturbed.window(micro_batches(window + 1))
    assert_equal(everything(undisturbed), everything(accumulator))


@pytest.mark.parametrize(("name", "device"), EVERYWHERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_saved_comes_back_bit_for_bit(name: str, device: str, dtype: torch.dtype) -> None:
    """And goes on as the one that was never interrupted; saved before any update, too."""
    for done in (0, 3):
        first = engine(name, device=device, dtype=dtype)
        for window in range(done):
            first.window(micro_batches(window))
        weights = copy.deepcopy(first.model.state_dict())
        copies, values = first.state_dict()
        tensors, plain = optimizer_state(first.optimizer)
        saved = copy.deepcopy((copies, tensors)), json.loads(json.dumps([values, plain]))
        second = engine(name, device=device, dtype=dtype)
        second.window(micro_batches(77))
        second = engine(name, device=device, dtype=dtype)
        second.model.load_state_dict(weights)
        second.load_state_dict(saved[0][0], saved[1][0])
        load_optimizer_state(second.optimizer, saved[0][1], saved[1][1])
        assert_equal(everything(first), everything(second))
        for window in (10, 11):
            first.window(micro_batches(window))
            second.window(micro_batches(window))
        assert_equal(everything(first), everything(second))


@pytest.mark.parametrize(("name", "device"), EVERYWHERE)
def test_half_parameters_are_updated_through_fp32_masters(name: str, device: str) -> None:
    """Steps far below what bf16 can tell apart add up."""
    accumulator = engine(name, device=device, dtype=torch.bfloat16)
    for group in accumulator.optimizer.param_groups:
        group["lr"] *= 1e-3
    for window in range(4):
        accumulator.window(micro_batches(window))
    masters, _ = accumulator.state_dict()
    inner = masters["master.inner.weight"]
    assert inner.dtype is torch.float32
    assert not torch.equal(inner, inner.bfloat16().float())
    assert torch.equal(accumulator.model.state_dict()["inner.weight"], inner.bfloat16())
    state = optimizer_state(accumulator.optimizer)[0]
    assert {value.dtype for value in state.values()} <= {torch.float32, torch.uint8}


@pytest.mark.parametrize("name", ON_CPU)
def test_n_micro_batches_step_as_the_library_does_with_one_large_batch(name: str) -> None:
    """The optimizer is the library's own; the gradient it gets is the large batch's."""
    accumulator = engine(name)
    model = Net()
    optimizer = make_optimizer(
        name, parameter_groups(model, 0.1),
        learning_rate=accumulator.optimizer.param_groups[0]["lr"], momentum=0.9,
        embeddings=embeddings_of(model),
    )  # fmt: skip
    if OPTIMIZERS[name].averages:
        optimizer.train()  # type: ignore[attr-defined]
    accumulator.window(micro_batches(1))
    term = loss(model, torch.cat(micro_batches(1)))
    (term.total / term.weight).backward()  # type: ignore[no-untyped-call]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer.step()
    for key, value in model.state_dict().items():
        if name not in ("lion", "adamw-8bit") or key == "head.weight":
            # A sign, and a code of 8 bits, turn over where the gradient's last bit decides.
            assert torch.allclose(accumulator.model.state_dict()[key], value, atol=2e-4, rtol=0), key
    assert any(not torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ON_CPU)
def test_the_table_says_how_large_a_state_is(name: str) -> None:
    """So that memory can be planned: bytes a parameter of a large matrix."""
    matrix = nn.Parameter(torch.randn(256, 512))
    optimizer = make_optimizer(name, [matrix], learning_rate=1e-3, momentum=0.9)
    if OPTIMIZERS[name].averages:
        optimizer.train()  # type: ignore[attr-defined]
    matrix.grad = torch.randn(256, 512)
    optimizer.step()
    state = [value for value in optimizer.state[matrix].values() if isinstance(value, torch.Tensor)]
    measured = sum(value.nbytes for value in state) / matrix.numel()
    assert measured == pytest.approx(OPTIMIZERS[name].state_bytes, abs=0.1)


def test_muon_takes_matrices_and_adamw_the_rest() -> None:
    """A table of embeddings is no matrix; one learning rate, set from outside, is that of both."""
    model = Net()
    optimizer = make_optimizer(
        "muon", parameter_groups(model, 0.1), learning_rate=1e-2, embeddings=embeddings_of(model)
    )
    assert isinstance(optimizer, MuonWithAdamW)
    names = {parameter: name for name, parameter in model.named_parameters()}
    taken = [
        ("momentum" in group, group["weight_decay"], {names[p] for p in group["params"]})
        for group in optimizer.param_groups
    ]
    assert taken == [
        (True, 0.1, {"inner.weight", "head.weight"}),
        (False, 0.1, {"table.weight"}),
        (False, 0.0, {"inner.bias", "norm.weight", "norm.bias", "head.bias"}),
    ]
    before = copy.deepcopy(model.state_dict())
    accumulator = Accumulator(model, optimizer, loss)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    accumulator.window(micro_batches(1))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_schedule_free_average_is_evaluated_and_leaves_no_trace(dtype: torch.dtype) -> None:
    """The library's own `train()` comes back with other last bits, so an evaluation would change the run."""
    plain, evaluated = engine("schedule-free", dtype=dtype), engine("schedule-free", dtype=dtype)
    for window in range(4):
        plain.window(micro_batches(window))
        evaluated.window(micro_batches(window))
        trained = copy.deepcopy(evaluated.model.state_dict())
        with evaluated.averaged():
            inside = evaluated.model.state_dict()
            assert window == 0 or not torch.equal(inside["inner.weight"], trained["inner.weight"])
    assert_equal(everything(plain), everything(evaluated))


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_clipped_after_the_average_and_after_the_norm(deferred: bool, dtype: torch.dtype) -> None:
    """Each number of the mean gradient, not of a micro-batch's: +6 and -4 make 1."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3, dtype=dtype))

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return (self.w * batch).sum()

    def linear(model: nn.Module, batch: torch.Tensor) -> LossTerm:
        return LossTerm(model(batch), len(batch))

    for norm in (None, 1.0):
        model = Plain()
        optimizer = make_optimizer("sgd", model.parameters(), learning_rate=1.0)
        accumulator = Accumulator(
            model, optimizer, linear, clip_value=0.5, max_grad_norm=norm, deferred=deferred
        )
        batches = [
            torch.tensor([[6.0, -1.0, -9.0]], dtype=dtype), torch.tensor([[-4.0, 0.5, 5.0]], dtype=dtype)
        ]  # fmt: skip
        result = accumulator.window(batches)
        accumulator.flush()
        mean = torch.tensor([1.0, -0.25, -2.0], dtype=dtype)
        assert result.gradient_norm == pytest.approx(mean.norm().item())
        scaled = mean if norm is None else mean / mean.norm()
        assert model.w.detach().tolist() == pytest.approx((-scaled.clamp(-0.5, 0.5)).tolist(), rel=1e-7)
        assert model.w[2].item() == 0.5
        nan = accumulator.window([torch.tensor([[NAN, 0.0, 0.0]], dtype=dtype)])
        accumulator.flush()
        assert nan.skipped == "non-finite"
        assert bool(model.w.isfinite().all())


def test_an_optimizer_for_cuda_is_refused_on_a_cpu_by_name() -> None:
    """With those that run there."""
    with pytest.raises(UsageError, match=r"paged-adamw-8bit runs on CUDA devices only.*adafactor"):
        make_optimizer("paged-adamw-8bit", [nn.Parameter(torch.zeros(3))], learning_rate=1.0)


def test_a_package_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person types to get it."""
    monkeypatch.setitem(__import__("sys").modules, "schedulefree", None)
    with pytest.raises(UsageError, match=r"schedule-free needs schedulefree.*-m pip install schedulefree"):
        make_optimizer("schedule-free", [nn.Parameter(torch.zeros(3))], learning_rate=1.0)
