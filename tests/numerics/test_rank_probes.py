"""Two and three replicated ranks: every window's gradient is that of one process, whatever a rank lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.numerics.probes import (
    RELATIVE,
    NormedNet,
    Probe,
    SmallGPT,
    Tokens,
    gpt_loss,
    probe_loss,
    relative_error,
    rows,
    y,
)
from tests.support.rank_groups import on_ranks
from trainer_backend.engine import Accumulator, LossTerm
from trainer_backend.engine.buckets import Buckets
from trainer_backend.engine.ranks import Ranks
from trainer_backend.engine.window import NoBatchError
from trainer_backend.errors import RankFailedError, WindowLeft

SIZES = (2, 3)
VALID = [7, 2, 11, 4, 0, 9, 3]
"""Valid tokens of each micro-batch of a window, in the global order: three ranks run 3, 2 and 2."""


def engine(model: nn.Module, loss: Any, *, alone: bool = False, **options: Any) -> Accumulator:
    """Over all ranks, in buckets of 40 numbers, so that there are many; or alone."""
    device = torch.device("cpu")
    ranks = Ranks(None if alone else dist.group.WORLD, device)
    made = Accumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), loss, ranks=ranks, **options)
    if not alone:
        made._passes._buckets = Buckets(ranks, bucket_bytes=320)  # type: ignore[attr-defined]
    return made


def own(everything: list[Any], rank: int, size: int) -> list[Any]:
    """A rank's micro-batches: those whose number leaves `rank`."""
    return everything[rank::size]


def case_digits(rank: int, size: int) -> list[Any]:
    """y_i = 10 ** i over windows of 6, 7, 2 and 1 micro-batches: D times the update, and D."""
    model = Probe()
    accumulator = engine(model, probe_loss)
    told = []
    for many in (6, 7, 2, 1, 6):
        before = model.w.item()
        batches = [y(10.0**index) for index in range(many)]
        result = accumulator.window(own(batches, rank, size))
        told.append([(model.w.item() - before) * result.weight, result.weight, result.micro_batches])
    return told


class Odd(nn.Module):
    """A tied head, a branch that only the window's first micro-batch uses, a frozen layer with an adapter."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.gpt = SmallGPT(context=16, dropout=dropout)
        self.branch = nn.Parameter(torch.ones(5, 3, dtype=torch.float64))
        self.unused = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.frozen = nn.Linear(12, 12).double().requires_grad_(False)
        self.adapter = nn.Parameter(torch.full((12, 12), 0.1, dtype=torch.float64))

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """Logits; rows that begin with token 0 or 1 use the branch."""
        x = self.gpt.embedding(tokens_bt)
        bent = functional.linear(x, self.frozen.weight + self.adapter)
        logits: torch.Tensor = self.gpt(tokens_bt) + functional.linear(bent, self.gpt.embedding.weight)
        return logits + self.branch.square().sum() * logits.mean() if int(tokens_bt[0, 0]) < 2 else logits


def odd(dropout: float = 0.0) -> Odd:
    """The same on all ranks."""
    torch.manual_seed(0)
    return Odd(dropout)


def micro_batches(seed: int = 0) -> list[Tokens]:
    """A window's, in the global order; only the first uses the branch."""
    made = rows(VALID, seed=seed)
    for index, each in enumerate(made):
        each.x[0, 0] = 0 if index == 0 else 5
    return made


def case_odd(rank: int, size: int) -> list[float]:
    """Relative error against one process, over three windows; infinite where only one has a gradient."""
    model, reference = odd(), odd()
    accumulator, alone = engine(model, gpt_loss), engine(reference, gpt_loss, alone=True)
    errors: list[float] = []
    found: dict[str, torch.Tensor] = {}
    for window in range(3):
        everything = micro_batches(window)
        found, _ = accumulator.gradients(own(everything, rank, size))
        right, _ = alone.gradients(everything)
        errors.append(relative_error(found, right) if found.keys() == right.keys() else float("inf"))
    assert "unused" not in found
    assert "frozen.weight" not in found
    return errors


def case_dropout(rank: int, size: int) -> float:
    """The same masks whatever the ranks: each micro-batch draws by its place in the run."""
    everything = micro_batches()
    options: dict[str, Any] = {"seed_of_step": lambda step: 1000 * step}
    found, _ = engine(odd(0.3), gpt_loss, **options).gradients(own(everything, rank, size))
    right, _ = engine(odd(0.3), gpt_loss, alone=True, **options).gradients(everything)
    other, _ = engine(odd(0.3), gpt_loss, alone=True, seed_of_step=lambda step: step).gradients(everything)
    assert relative_error(other, right) > 1e-3
    return relative_error(found, right)


def case_reentrant(rank: int, size: int) -> list[float]:
    """Shared weights under reentrant checkpointing: their gradient comes in several parts."""
    errors = []
    model, reference = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    reference.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})

    def loss(module: nn.Module, x: torch.Tensor) -> LossTerm:
        out = checkpoint(module, x.clone().requires_grad_(), use_reentrant=True)
        out = checkpoint(module, out, use_reentrant=True)
        return LossTerm(module(out).square().sum(), len(x))

    dist.broadcast(model.weight.detach(), 0)
    dist.broadcast(model.bias.detach(), 0)
    reference.load_state_dict(model.state_dict())
    accumulator, alone = engine(model, loss), engine(reference, loss, alone=True)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        everything = [torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(5)]
        found, _ = accumulator.gradients(own(everything, rank, size))
        errors.append(relative_error(found, alone.gradients(everything)[0]))
    return errors


def case_clip(rank: int, size: int) -> list[float]:
    """Rank means 6 and -4 (others 1): clipped after averaging; the noise is that of all micro-batches."""
    model = Probe()
    accumulator = engine(model, probe_loss, max_grad_norm=1.0, gradient_norm_every=1)
    result = accumulator.window([y([6.0, -4.0, 1.0][rank])])
    assert result.noise is not None
    return [model.w.item(), result.gradient_norm or 0.0, result.noise.trace, result.noise.squared_gradient]


def case_buffers(rank: int, size: int) -> list[Any]:
    """BatchNorm's statistics after two windows: alike on all ranks, the count that of all micro-batches."""
    torch.manual_seed(0)
    model = NormedNet()

    def loss(module: nn.Module, x: torch.Tensor) -> LossTerm:
        return LossTerm(module(x).square().sum(), len(x))

    accumulator = engine(model, loss)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        everything = [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(5)]
        accumulator.window(own(everything, rank, size))
    state = model.state_dict()
    return [state["net.1.running_mean"].tolist(), int(state["net.1.num_batches_tracked"])]


def case_failures(rank: int, size: int) -> list[Any]:
    """The last rank fails, then leaves, in a micro-batch; a window without a batch; then an exact one."""
    model, calls = Probe(), iter(range(1000))
    error: BaseException = ValueError("it fails")

    def loss(module: nn.Module, batch: torch.Tensor) -> LossTerm:
        if next(calls) in {3, 5} and rank == size - 1:
            raise error
        return probe_loss(module, batch)

    accumulator = engine(model, loss)
    batches = [y(1.0)] * 2
    accumulator.window(batches)
    told: list[Any] = []
    for kind in (ValueError, KeyboardInterrupt):
        error = kind("it fails")
        try:
            accumulator.window(batches)
        except RankFailedError as failed:
            told.append([failed.rank, str(failed)])
        except (WindowLeft, ValueError, KeyboardInterrupt) as raised:
            told.append(type(raised).__name__)
    try:
        accumulator.window([])
    except NoBatchError:
        told.append("no batch")
    before = model.w.item()
    accumulator.window([y(10.0**rank)])
    return [*told, (model.w.item() - before) * size, accumulator.step]


CASES: dict[str, Callable[[int, int], Any]] = {
    "digits": case_digits,
    "odd": case_odd,
    "dropout": case_dropout,
    "reentrant": case_reentrant,
    "clip": case_clip,
    "buffers": case_buffers,
    "failures": case_failures,
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each case gave, by the size of its group and by rank."""
    return on_ranks("tests.numerics.test_rank_probes", CASES, SIZES, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("size", SIZES)
def test_the_digits_of_all_ranks_enter_each_window_once(done: dict[str, Any], size: int) -> None:
    """111111, then 1111111, 11, 1 (ranks without a micro-batch) and 111111 again, on every rank."""
    for told in done["digits"][size]:
        for (update, weight, many), wanted in zip(told, (6, 7, 2, 1, 6), strict=True):
            assert update == pytest.approx(int("1" * wanted), rel=RELATIVE)
            assert (weight, many) == (wanted, wanted)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", ["odd", "reentrant"])
def test_gradients_are_those_of_one_process(done: dict[str, Any], case: str, size: int) -> None:
    """A parameter that one rank's first micro-batch uses, a tied head, frozen and unused ones, reentrance."""
    assert max(error for errors in done[case][size] for error in errors) <= RELATIVE


@pytest.mark.parametrize("size", SIZES)
def test_dropout_masks_do_not_depend_on_the_ranks(done: dict[str, Any], size: int) -> None:
    """They are drawn by (seed, step, micro-batch)."""
    assert max(done["dropout"][size]) <= RELATIVE


def test_clipping_and_the_noise_scale_are_those_of_all_ranks(done: dict[str, Any]) -> None:
    """Means 6 and -4: the update is 1, its norm 1, the noise's trace 50 and the squared gradient -24."""
    assert done["clip"][2] == [pytest.approx([1.0, 1.0, 50.0, -24.0], rel=RELATIVE)] * 2


@pytest.mark.parametrize("size", SIZES)
def test_buffers_are_averaged_and_batches_counted(done: dict[str, Any], size: int) -> None:
    """All ranks go on from one state."""
    first, *others = done["buffers"][size]
    assert first[1] == 10
    assert all(other == first for other in others)


@pytest.mark.parametrize("size", SIZES)
def test_what_one_rank_raises_ends_the_window_on_all_and_the_next_is_exact(
    done: dict[str, Any], size: int
) -> None:
    """Its own error there, whose it was on the others; nothing is consumed, and nothing hangs."""
    failing = size - 1
    for rank, (failed, left, empty, update, step) in enumerate(done["failures"][size]):
        own_error = ["ValueError", "KeyboardInterrupt"]
        told = [[failing, f"Rank {failing}: ValueError: it fails"], "WindowLeft"]
        assert [failed, left] == (own_error if rank == failing else told)
        assert empty == "no batch"
        assert update == pytest.approx(int("1" * size), rel=RELATIVE)
        assert step == 2
