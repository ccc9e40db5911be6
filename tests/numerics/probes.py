"""Models, data and the reference that the engine is held against.

The reference keeps all samples of a window and runs them as one large batch: ten lines, no engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.nn import functional

from trainer_backend.engine import Accumulator, LossTerm

RELATIVE = 1e-12


class Probe(nn.Module):
    """One parameter w = 0; its loss is −Σ w·y, so each update of SGD at rate 1 is the mean of y."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))


def probe_loss(model: nn.Module, y: torch.Tensor) -> LossTerm:
    """Sum over the elements that are not NaN-free padding; weight is their number."""
    assert isinstance(model, Probe)
    return LossTerm(-(model.w * y).sum(), weight=y.numel())


def y(*values: float) -> torch.Tensor:
    """A micro-batch of the probe."""
    return torch.tensor(values, dtype=torch.float64)


def probe(**options: object) -> tuple[Probe, Accumulator]:
    """The probe under SGD at learning rate 1."""
    model = Probe()
    options.setdefault("loss", probe_loss)
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=1.0)
    return model, Accumulator(model, optimizer, options.pop("loss"), **options)  # type: ignore[arg-type]


class SmallGPT(nn.Module):
    """Two blocks of causal attention, pre-norm, tied head, fp64; targets of −1 do not count."""

    def __init__(self, vocabulary: int = 11, width: int = 12, context: int = 6, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.randn(context, width) * 0.1)
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.double()

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """Logits, (b, t, vocabulary)."""
        x_btc = self.embedding(tokens_bt) + self.place[: tokens_bt.shape[1]]
        for block in self.blocks:
            x_btc = block(x_btc)
        return functional.linear(self.norm(x_btc), self.embedding.weight)


class Block(nn.Module):
    """Attention and a small MLP."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """`x_btc` after attention and MLP."""
        q, k, v = self.qkv(self.first(x_btc)).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btc = x_btc + self.dropout(self.out(mixed))
        out: torch.Tensor = x_btc + self.down(functional.gelu(self.up(self.second(x_btc))))
        return out


class NormedNet(nn.Module):
    """A net with BatchNorm, whose running statistics are buffers that a forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()

    def forward(self, x_bf: torch.Tensor) -> torch.Tensor:
        """Three numbers a row."""
        out: torch.Tensor = self.net(x_bf)
        return out


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A batch of the small GPT."""

    x: torch.Tensor
    target: torch.Tensor


def gpt_loss(model: nn.Module, batch: Tokens) -> LossTerm:
    """Cross-entropy over the valid targets."""
    logits = model(batch.x)
    total = functional.cross_entropy(
        logits.flatten(0, 1), batch.target.flatten(), reduction="sum", ignore_index=-1
    )
    return LossTerm(total, int((batch.target != -1).sum()))


def rows(valid: Sequence[int], *, context: int = 16, vocabulary: int = 11, seed: int = 0) -> list[Tokens]:
    """One sample each, with so many valid targets."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for many in valid:
        x = torch.randint(vocabulary, (1, context), generator=generator)
        target = torch.randint(vocabulary, (1, context), generator=generator)
        target[:, many:] = -1
        made.append(Tokens(x, target))
    return made


def joined(batches: Iterable[Tokens]) -> Tokens:
    """Several batches as one large one."""
    listed = list(batches)
    return Tokens(torch.cat([one.x for one in listed]), torch.cat([one.target for one in listed]))


def large_batch_gradient(
    model: nn.Module, terms: Callable[[], LossTerm | Iterable[LossTerm]]
) -> dict[str, torch.Tensor]:
    """The reference: one forward over everything, each term over its own denominator, one backward."""
    returned = terms()
    listed: list[LossTerm] = [returned] if isinstance(returned, LossTerm) else list(returned)
    loss = torch.stack([term.total / term.weight for term in listed if float(term.weight) > 0]).sum()
    parameters = dict(model.named_parameters())
    gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
        loss, list(parameters.values()), allow_unused=True
    )
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
    }


def relative_error(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """‖found − right‖ / ‖right‖ over all parameters; a missing gradient is zero."""
    found = {name: tensor.detach() for name, tensor in found.items()}
    right = {name: tensor.detach() for name, tensor in right.items()}
    difference = torch.cat(
        [(found.get(name, torch.zeros_like(g)) - g).flatten() for name, g in right.items()]
    )
    return float(difference.norm() / torch.cat([g.flatten() for g in right.values()]).norm())
