"""Half precision: masters, the loss scale from a c that is near the weight, and the norm's parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.numerics.probes import (
    RELATIVE,
    SmallGPT,
    gpt_loss,
    large_batch_gradient,
    probe,
    relative_error,
    rows,
    y,
)
from trainer_backend.engine import Accumulator, LossTerm, inspect_model, make_optimizer
from trainer_backend.protocol import MicroBatchMeasured


class Half(nn.Module):
    """One bf16 or fp16 vector whose gradient is what the batch says, element by element."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, dtype=dtype))


def half_loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
    """Gradient of the mean: the mean of x."""
    assert isinstance(model, Half)
    return LossTerm((model.w.float() * x).sum(), 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("many", [8, 64, 300])
def test_half_parameters_gather_in_fp32_and_move_by_less_than_their_own_step(
    dtype: torch.dtype, many: int
) -> None:
    """1 + 2⁻⁷ many times: a half buffer stops growing; and a step of a thousandth adds up in the master."""
    model = Half(dtype)
    optimizer = make_optimizer("sgd", model.parameters(), learning_rate=2.0**-12)
    accumulator = Accumulator(model, optimizer, half_loss)
    x = torch.full((4,), 1 + 2.0**-7)
    gradients, _ = accumulator.gradients([x] * many)
    assert gradients["w"].dtype == torch.float32
    assert torch.equal(gradients["w"], x)
    for _ in range(8):
        accumulator.window([x] * 2)
    assert torch.allclose(optimizer.param_groups[0]["params"][0], 1 - 8 * 2.0**-12 * x, rtol=1e-6)
    assert model.w.dtype == dtype
    assert torch.equal(model.w, optimizer.param_groups[0]["params"][0].to(dtype))


def test_opting_out_of_fp32_gradients_is_named() -> None:
    """The gradient is inexact then, and a warning counts the parameters."""
    model = Half(torch.bfloat16)
    assert inspect_model(model, gradient_dtype="fp32") == []
    (warned,) = inspect_model(model, gradient_dtype="parameter")
    assert (warned.code, warned.values) == ("half-gradients", {"parameters": 1})
    accumulator = Accumulator(
        model, torch.optim.SGD(model.parameters(), 0.1), half_loss, gradient_dtype="parameter"
    )
    gradients, _ = accumulator.gradients([torch.full((4,), 1 + 2.0**-7)] * 300)
    assert gradients["w"].dtype == torch.bfloat16
    assert not torch.equal(gradients["w"].float(), torch.full((4,), 1 + 2.0**-7))


@pytest.mark.parametrize("tokens", [4096, 16384, 777])
def test_fp16_skips_no_step_at_the_start(tokens: int) -> None:
    """Sums over thousands of tokens: c is near the weight, so the seed of the backward is near 1."""
    torch.manual_seed(0)
    model = nn.Linear(8, 16)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> LossTerm:
        logits = model(batch[0])
        assert logits.dtype == torch.float16
        return LossTerm(functional.cross_entropy(logits.float(), batch[1], reduction="sum"), len(batch[1]))

    accumulator = Accumulator(
        model, make_optimizer("adamw", model.parameters(), learning_rate=1e-3), loss, precision="fp16"
    )
    data = [(torch.randn(tokens, 8), torch.randint(16, (tokens,))) for _ in range(2)]
    results = [accumulator.window(data) for _ in range(3)]
    assert [result.skipped for result in results] == ["", "", ""]
    assert accumulator.state_dict()[1]["c"] == 2.0 ** round(torch.tensor(float(tokens)).log2().item())


@pytest.mark.parametrize("valid", [(7, 2, 11, 4), (1, 16), (5, 5, 5)])
def test_each_micro_batchs_norm_is_that_of_its_own_mean(valid: tuple[int, ...]) -> None:
    """From leaf hooks, without any copy of a gradient; the window's norm is the mean gradient's."""
    torch.manual_seed(1)
    model = SmallGPT(context=16)
    told: list[MicroBatchMeasured] = []
    accumulator = Accumulator(
        model,
        torch.optim.SGD(model.parameters(), 0.0),
        gpt_loss,
        gradient_norm_every=1,
        on_micro_batch=told.append,
    )
    batches = rows(valid)
    result = accumulator.window(batches)
    for event, batch in zip(told, batches, strict=True):
        right = large_batch_gradient(model, lambda batch=batch: gpt_loss(model, batch))  # type: ignore[misc]
        norm = torch.cat([g.flatten() for g in right.values()]).norm().item()
        assert event.gradient_norm == pytest.approx(norm, rel=1e-9)
        total = gpt_loss(model, batch).total.item()
        assert event.loss == pytest.approx(total / event.weight, rel=RELATIVE)
    accumulator.max_grad_norm = None
    gradients, _ = accumulator.gradients(batches)
    norm = torch.cat([g.flatten() for g in gradients.values()]).norm().item()
    assert result.gradient_norm == pytest.approx(norm, rel=1e-9)


def test_norms_are_sampled_every_so_many_windows_and_hooks_are_gone_between() -> None:
    """All of a sampled window's micro-batches; the first one's also in every quarter of them."""
    told: list[MicroBatchMeasured] = []
    model, accumulator = probe(gradient_norm_every=8, on_micro_batch=told.append)
    for _ in range(9):
        accumulator.window([y(2.0), y(4.0)])
        assert model.w._backward_hooks is None  # an empty dict would still be asked at each backward
    have = [[event.gradient_norm is not None for event in told[i : i + 2]] for i in range(0, 18, 2)]
    first = [True, False]
    assert have == [
        [True, True],
        [False] * 2,
        first,
        [False] * 2,
        first,
        [False] * 2,
        first,
        [False] * 2,
        [True] * 2,
    ]


def test_a_persons_own_hook_outlives_the_sampling() -> None:
    """One that was there before, and one that comes in a sampled window."""
    model, accumulator = probe(gradient_norm_every=2)
    seen: list[str] = []
    model.w.register_hook(lambda _: seen.append("before"))  # type: ignore[no-untyped-call]
    accumulator.window([y(2.0)])
    accumulator.window([y(2.0)])
    assert seen == ["before"] * 2
    model.w._backward_hooks = None

    def window() -> Iterator[torch.Tensor]:
        model.w.register_hook(lambda _: seen.append("within"))  # type: ignore[no-untyped-call]
        yield y(2.0)

    accumulator.window(window())
    accumulator.window([y(2.0)])
    assert seen == ["before"] * 2 + ["within"] * 2


def test_no_norm_is_taken_when_none_is_asked_for() -> None:
    """0 is never."""
    told: list[MicroBatchMeasured] = []
    _, accumulator = probe(gradient_norm_every=0, on_micro_batch=told.append)
    accumulator.window([y(2.0), y(4.0)])
    assert [event.gradient_norm for event in told] == [None, None]


def test_a_hook_that_fires_twice_voids_the_norm() -> None:
    """Reentrant checkpointing with a shared weight shows a hook two parts of one gradient."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(2)
    layer = nn.Linear(3, 3).double()
    told: list[MicroBatchMeasured] = []

    def loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
        inner = checkpoint(model, x.requires_grad_(), use_reentrant=True)
        return LossTerm(model(inner).square().sum(), len(x))

    accumulator = Accumulator(
        layer,
        torch.optim.SGD(layer.parameters(), 0.1),
        loss,
        gradient_norm_every=1,
        on_micro_batch=told.append,
    )
    x = torch.randn(2, 3).double()
    accumulator.window([x, x.clone()])
    assert [event.gradient_norm for event in told] == [None, None]
    assert accumulator.void_norms == 2


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_one_pass_inside_the_fused_step_equals_three_passes(name: str, dtype: torch.dtype) -> None:
    """Scale, clip and step in one kernel, against multiply, clip and a plain step."""
    torch.manual_seed(3)
    model, twin = nn.Linear(5, 4).to(dtype), nn.Linear(5, 4).to(dtype)
    twin.load_state_dict(model.state_dict())
    accumulator = Accumulator(
        model,
        make_optimizer(name, model.parameters(), learning_rate=0.1, weight_decay=0.1, momentum=0.9),
        lambda m, x: LossTerm(m(x).square().sum(), len(x)),
        max_grad_norm=0.5,
    )
    plain = make_optimizer(name, twin.parameters(), learning_rate=0.1, weight_decay=0.1, momentum=0.9)
    for _ in range(4):
        data = torch.randn(9, 5).to(dtype)
        accumulator.window(torch.split(data, 4))
        gradients = large_batch_gradient(twin, lambda data=data: LossTerm(twin(data).square().sum(), 9))  # type: ignore[misc]
        norm = torch.cat([g.flatten() for g in gradients.values()]).norm()
        for parameter, gradient in zip(twin.parameters(), gradients.values(), strict=True):
            parameter.grad = gradient * min(1.0, 0.5 / norm.item())
        plain.step()
    found = dict(model.named_parameters())
    limit = RELATIVE * 10 if dtype == torch.float64 else 1e-5
    assert relative_error(found, dict(twin.named_parameters())) <= limit  # type: ignore[arg-type]


def halves(*sizes: int) -> list[torch.nn.Parameter]:
    """bf16 parameters of ones."""
    return [torch.nn.Parameter(torch.ones(size, dtype=torch.bfloat16)) for size in sizes]


class Several(torch.nn.Module):
    """Sums its parameters' products with the batch."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(parameters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """0-d, fp32."""
        return torch.stack([(part.float() * x[0]).sum() for part in self.parts]).sum()


def several_loss(model: torch.nn.Module, x: torch.Tensor) -> LossTerm:
    """The sum over the batch's one number."""
    return LossTerm(model(x), x.shape[0])


def test_moments_of_an_optimizer_that_has_stepped_go_over_to_its_masters() -> None:
    """They were left behind under the half parameters' keys, and training began anew in silence."""
    model = Several(halves(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    several_loss(model, torch.ones(1)).total.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    accumulator = Accumulator(model, optimizer, several_loss)
    (leaf,) = optimizer.param_groups[0]["params"]
    assert leaf.dtype == torch.float32
    assert optimizer.state[leaf]["step"].item() == 1
    assert optimizer.state[leaf]["exp_avg"].dtype == torch.float32
    accumulator.window([torch.ones(1)])
    assert optimizer.state[leaf]["step"].item() == 2


def test_a_half_group_that_is_added_later_gets_masters() -> None:
    """A thousandth of itself does not move a bf16 parameter."""
    model = Several(halves(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    accumulator = Accumulator(model, optimizer, several_loss)
    accumulator.window([torch.ones(1)])
    (late,) = halves(2)
    model.parts.append(late)
    optimizer.add_param_group({"params": [late]})
    for _ in range(8):
        accumulator.window([torch.ones(1)])
    leaves = [leaf for group in optimizer.param_groups for leaf in group["params"]]
    assert [leaf.dtype for leaf in leaves] == [torch.float32] * 2
    assert leaves[1].tolist() == pytest.approx([1 - 8e-3] * 2, rel=1e-6)
    assert late.float().tolist() == pytest.approx([1 - 8e-3] * 2, rel=4e-3)
    assert set(accumulator.state_dict()[0]) == {"master.parts.0", "master.parts.1"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_parameter_that_only_the_optimizer_holds_is_part_of_the_gradient(dtype: torch.dtype) -> None:
    """A learned temperature outside the model: in `gradients()`, and in a checkpoint of masters."""
    temperature = torch.nn.Parameter(torch.full((), 2.0, dtype=dtype))
    model = torch.nn.Linear(1, 1, bias=False).to(dtype)

    def loss(net: torch.nn.Module, x: torch.Tensor) -> LossTerm:
        return LossTerm((net(x) * temperature).double().sum(), x.shape[0])

    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    accumulator = Accumulator(model, optimizer, loss)
    gradients, _ = accumulator.gradients([torch.ones(2, 1, dtype=dtype)])
    assert set(gradients) == {"weight", "optimizer.0.1"}
    assert gradients["optimizer.0.1"].item() == pytest.approx(float(model.weight.detach()), rel=1e-2)
    tensors, values = accumulator.state_dict()
    accumulator.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, values)
