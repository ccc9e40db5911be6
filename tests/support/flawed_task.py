"""A task with one flaw of those that accumulation cannot make right, as its options say."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom
from torch.utils.checkpoint import checkpoint

from trainer_backend.tasks import Datasets, LossTerm


class Net(nn.Module):
    """6 -> 2; `inner` is called twice, where asked under reentrant checkpointing in training."""

    def __init__(self, flaw: str) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.norm = nn.BatchNorm1d(6) if flaw == "batch-norm" else nn.LayerNorm(6)
        self.gradient_checkpointing = flaw == "reentrant"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (b, s, 6) -> logits (b, 2)."""
        hidden = self.first(x)
        for _ in range(2):
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(self.inner, hidden, use_reentrant=True)
            else:
                hidden = self.inner(hidden)
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2) if _is_batch_norm(self.norm) else hidden
        given: torch.Tensor = self.last(hidden.tanh().mean(1))
        return given


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm1d)


class Task:
    """Flaws: batch-norm, hook, reentrant, mean, half-total, half-weights."""

    def __init__(self, flaw: str) -> None:
        self.flaw = flaw

    def model(self) -> nn.Module:
        """The flawed model."""
        net = Net(self.flaw)
        if self.flaw == "half-weights":
            net.to(torch.bfloat16)
        if self.flaw == "hook":
            net.last.bias.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]  # torch's is untyped
        return net

    def datasets(self) -> Datasets:
        """Thirty samples (6, 6) of two classes."""
        x = torch.randn(30, 6, 6, generator=torch.Generator().manual_seed(0))
        x = x.bfloat16() if self.flaw == "half-weights" else x
        return Datasets(train=torch.utils.data.TensorDataset(x, x[:, 0].sum(1).gt(0).long()))

    def loss(self, model: nn.Module, batch: Any) -> LossTerm:
        """Cross-entropy, as flawed as asked."""
        x, target = batch
        logits = model(x).float()
        if self.flaw == "mean":
            return LossTerm(F.cross_entropy(logits, target), len(target))
        total = F.cross_entropy(logits, target, reduction="sum")
        return LossTerm(total.bfloat16() if self.flaw == "half-total" else total, len(target))
