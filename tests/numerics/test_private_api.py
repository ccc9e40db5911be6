"""What stands in where torch lacks a name of its own gives the same numbers."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch
from torch import nn

from trainer_backend.engine import Accumulator, LossTerm, compile_model, graphs_compiled, private_api

MISSING = ("_foreach_mul_", "_foreach_copy_", "_foreach_lerp_", "_foreach_norm", "_amp_update_scale_")


@pytest.fixture(scope="module")
def bare() -> Any:
    """The module as it is on a torch that has none of these names; the package's own stays as it is."""
    assert private_api.__file__ is not None
    spec = importlib.util.spec_from_file_location("bare_private_api", private_api.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as torch_without:
        for name in MISSING:
            torch_without.delattr(torch, name)
        torch_without.delattr(torch.autograd.Variable, "_execution_engine")
        torch_without.delattr(nn.modules.batchnorm, "_BatchNorm")
        torch_without.delattr(nn.modules.dropout, "_DropoutNd")
        spec.loader.exec_module(module)
    return module


def tensors(seed: int) -> list[torch.Tensor]:
    """Three of unlike shapes, fp64."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).double() for shape in ((3, 2), (5,), ())]


def test_lists_of_tensors_are_worked_through_one_by_one(bare: Any) -> None:
    """Multiplied, copied, averaged and measured as torch's own calls do it."""
    acts: list[Any] = [
        lambda api, one, _other: api.multiply_each(one, 0.3),
        lambda api, one, _other: api.multiply_each(one, torch.tensor(0.3, dtype=torch.float64)),
        lambda api, one, other: api.copy_each(one, other),
        lambda api, one, other: api.lerp_each(one, other, 0.125),
    ]
    for act in acts:
        mine, theirs = tensors(0), tensors(0)
        act(bare, mine, tensors(1))
        act(private_api, theirs, tensors(1))
        assert not torch.equal(mine[0], tensors(0)[0])
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-15, atol=0.0)
    halves = [tensor.half() for tensor in tensors(2)]
    mine, theirs = (api.norm_of_each(halves, 2.0, torch.float32) for api in (bare, private_api))
    torch.testing.assert_close(list(mine), list(theirs))
    assert mine[0].dtype == torch.float32


@pytest.mark.parametrize("found", [[0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1], [0, 0, 1, 0, 0, 0]])
def test_the_loss_scale_goes_the_same_way(
    bare: Any, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halved at each overflow, doubled after three good windows, counted anew after both."""
    states = []
    for api in (private_api, bare):
        if api is bare:
            monkeypatch.delattr(torch, "_amp_update_scale_")
        scale, good = torch.tensor(1024.0), torch.tensor(0, dtype=torch.int32)
        went = []
        for value in found:
            api.update_loss_scale(
                scale, good, torch.tensor(float(value)), growth=2.0, backoff=0.5, interval=3
            )
            went.append((scale.item(), good.item()))
        states.append(went)
    assert states[0] == states[1]


def test_the_backward_from_a_seed_is_the_documented_one(bare: Any) -> None:
    """A leaf's gradient, twice, so that it is added to."""
    gradients: list[Any] = []
    for api in (bare, private_api):
        leaf = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            api.backward_from(leaf.square().sum(), torch.tensor(0.25, dtype=torch.float64))
        gradients.append(leaf.grad)
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], torch.tensor([1.0, 2.0], dtype=torch.float64))


def test_what_cannot_be_told_is_not_promised(bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No callback behind a backward and no count of graphs; the bases of layers are found another way."""
    called: list[int] = []
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)
    assert not bare.after_backward(lambda: called.append(1))
    assert not called
    assert bare.graphs_compiled() == 0
    assert issubclass(nn.BatchNorm2d, bare.BATCH_NORM)
    assert issubclass(nn.Dropout1d, bare.DROPOUT)
    assert not issubclass(nn.LayerNorm, bare.BATCH_NORM)


class Twice(nn.Module):
    """A model of the user's own class."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        """Shape (b, 2)."""
        return 2 * self.inner(x)


@pytest.mark.parametrize("make", [Twice, lambda: nn.Sequential(nn.Linear(4, 2))])
def test_a_model_is_compiled_whoever_wrote_its_class(make: Any) -> None:
    """torch 2.13 compiles nothing of a bare nn.Sequential when it is compiled in place."""
    model = make()
    before = graphs_compiled()
    compile_model(model, backend="eager")
    accumulator = Accumulator(
        model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: LossTerm(m(x).square().sum(), len(x))
    )
    accumulator.window([torch.ones(3, 4)])
    assert graphs_compiled() == before + 1
