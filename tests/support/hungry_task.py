"""A task that runs into a real address-space limit, in the phase that is asked for.

The limit is set in the `limit_at`-th update, when all of the trainer's threads run: what is used then
and `ROOM_BYTES` more. From then on each sample needs 128 MiB in that phase, so eight do not fit and four
do; the optimizer's update needs 1 GiB at once, and none where it goes tensor by tensor.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch

from trainer_backend.tasks import Datasets, LossTerm

MIB = 2**20
A_SAMPLE_BYTES = 128 * MIB
ROOM_BYTES = 900 * MIB
UPDATE_BYTES = 1024 * MIB


def take(count_bytes: int) -> None:
    """Have so much memory for a moment; the allocator's own error when there is none."""
    torch.empty(count_bytes, dtype=torch.uint8)


class Hungry(torch.autograd.Function):
    """The identity, with an appetite in one direction."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, phase: str) -> torch.Tensor:  # noqa: D102
        ctx.phase = phase
        if phase == "forward":
            take(len(x) * A_SAMPLE_BYTES)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: D102
        (gradient,) = gradients
        if ctx.phase == "backward":
            take(len(gradient) * A_SAMPLE_BYTES)
        return gradient, None


class Update(torch.optim.AdamW):
    """AdamW whose update of all tensors at once needs much."""

    hungry = False

    def step(self, closure: Any = None) -> Any:
        """As AdamW's."""
        if self.hungry and self.param_groups[0]["foreach"] is not False:
            take(UPDATE_BYTES)
        return super().step(closure)


class Points(torch.utils.data.Dataset[torch.Tensor]):
    """Some."""

    uses_randomness = False

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index / 320)


class Task:
    """`phase`: forward, backward or optimizer; `limit_at`: the update after which memory is short."""

    def __init__(self, *, phase: str, limit_at: int = 2) -> None:
        self._phase = phase
        self._limit_at = limit_at
        self._updates = 0
        self._appetite = ""

    def model(self) -> torch.nn.Module:
        """A few weights."""
        return torch.nn.Linear(4, 1)

    def datasets(self) -> Datasets:
        """No validation."""
        return Datasets(train=Points())

    def optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """One that tells when it has updated."""
        optimizer = Update(parameters, lr=1e-3, foreach=True)
        optimizer.register_step_post_hook(self._stepped)
        return optimizer

    def _stepped(self, optimizer: Update, *_: Any) -> None:
        self._updates += 1
        if self._updates == self._limit_at:
            used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, resource.RLIM_INFINITY))
            self._appetite = self._phase
            optimizer.hungry = self._phase == "optimizer"

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> LossTerm:
        """The squares."""
        total = Hungry.apply(model(batch), self._appetite).square().sum()
        return LossTerm(total, len(batch))
