"""BatchNorm under accumulation: what differs from the large batch, and what the momentum offered mends."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.numerics.probes import RELATIVE, NormedNet, large_batch_gradient, relative_error
from trainer_backend.engine import Accumulator, LossTerm, suggested_momentum


def loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
    """Mean square."""
    return LossTerm(model(x).square().sum(), len(x))


def engine(model: nn.Module) -> Accumulator:
    """Over plain SGD."""
    return Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (2, 10), (5, 4, 3)])
def test_batch_norm_is_not_equal_to_the_large_batch(sizes: tuple[int, ...]) -> None:
    """Its statistics are those of the micro-batch."""
    torch.manual_seed(10)
    model = NormedNet()
    x = torch.randn(12, 4).double()

    gradients, _ = engine(model).gradients(torch.split(x, list(sizes)))
    right = large_batch_gradient(model, lambda: loss(model, x))
    assert relative_error(gradients, right) > 1e-3


def running_mean(momentum: float, batches: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """BatchNorm's running mean before and after a window of these micro-batches."""
    torch.manual_seed(11)
    norm = nn.BatchNorm1d(4, momentum=momentum).double()
    nn.init.normal_(norm.get_buffer("running_mean"))
    before = norm.get_buffer("running_mean").clone()
    assert engine(norm).window(batches).micro_batches == len(batches)
    return before, norm.get_buffer("running_mean")


@pytest.mark.parametrize(("momentum", "steps"), [(0.1, 4), (0.3, 7), (0.01, 64)])
def test_the_momentum_offered_gives_the_running_mean_of_the_large_batch(momentum: float, steps: int) -> None:
    """N updates with m' on N micro-batches, against one update with m on all their samples.

    Equal where the micro-batches' means are; where they differ, what is kept of the old mean is equal, and
    the new part is a mean of theirs. With m itself the old mean would be kept as (1 - m)^N.
    """
    offered = suggested_momentum(momentum, steps)
    assert offered is not None
    generator = torch.Generator().manual_seed(steps)
    alike = torch.randn(6, 4, generator=generator).double()
    shuffled = [alike[torch.randperm(6, generator=generator)] for _ in range(steps)]
    _, large = running_mean(momentum, [torch.cat(shuffled)])
    before, small = running_mean(offered, shuffled)
    assert torch.allclose(small, large, rtol=RELATIVE, atol=0)
    _, plain = running_mean(momentum, shuffled)
    kept = (plain - alike.mean(0)) / (before - alike.mean(0))
    assert torch.allclose(kept, torch.full_like(kept, (1 - momentum) ** steps), rtol=1e-9)

    others = [torch.randn(6, 4, generator=generator).double() + i for i in range(steps)]
    before, small = running_mean(offered, others)
    means = torch.stack([x.mean(0) for x in others])
    new = (small - (1 - momentum) * before) / momentum
    assert bool(((means.min(0).values < new) & (new < means.max(0).values)).all())
    shares = [offered * (1 - offered) ** (steps - 1 - i) / momentum for i in range(steps)]
    assert sum(shares) == pytest.approx(1.0, rel=1e-12)
    assert torch.allclose(
        new, (torch.tensor(shares, dtype=torch.float64)[:, None] * means).sum(0), rtol=RELATIVE * 10
    )
