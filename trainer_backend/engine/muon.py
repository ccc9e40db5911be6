"""Muon for the matrices, AdamW for all else, as one optimizer with one learning rate."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch


class MuonWithAdamW(torch.optim.Optimizer):
    """torch's Muon (Keller Jordan 2024, arXiv 2502.16982) steps 2-d weights, its AdamW the rest.

    Muon's update is scaled to the size of AdamW's (`match_rms_adamw`), so one learning rate and one weight
    decay suit both. Embeddings are tables, no matrices: they belong to AdamW. A group keeps its order and
    is cut in two where it has both.
    """

    MOMENTUM = 0.95

    def __init__(
        self,
        params: list[Any],
        *,
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        embeddings: Collection[torch.nn.Parameter] = (),
    ) -> None:
        """`params`: parameters, or groups of them. `embeddings`: 2-d parameters that are no matrices."""
        tables = {id(parameter) for parameter in embeddings}
        groups = [dict(entry) for entry in params] if isinstance(params[0], dict) else [{"params": params}]
        matrices, others = [], []
        for group in groups:
            inner = [p for p in group["params"] if p.dim() == 2 and id(p) not in tables]
            outer = [p for p in group["params"] if p.dim() != 2 or id(p) in tables]
            matrices += [group | {"params": inner}] if inner else []
            others += [group | {"params": outer}] if outer else []
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            muon = torch.optim.Muon(
                matrices, lr=lr, weight_decay=weight_decay, momentum=self.MOMENTUM,
                adjust_lr_fn="match_rms_adamw",
            )  # fmt: skip
            self._parts.append(muon)
        if others:
            fused = others[0]["params"][0].device.type in ("cpu", "cuda", "mps")
            adamw = torch.optim.AdamW(
                others, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps,
                fused=fused,
            )  # fmt: skip
            self._parts.append(adamw)
        super().__init__([group for part in self._parts for group in part.param_groups], {"lr": lr})
        self._share()

    def _share(self) -> None:
        """Let both parts work on these groups and this state, which checkpoints and settings know."""
        at = 0
        for part in self._parts:
            count = len(part.param_groups)
            part.param_groups = self.param_groups[at : at + count]
            part.state = self.state
            at += count

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step both parts. `closure` is not used: gradients are there already."""
        assert closure is None
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state, for both parts."""
        super().load_state_dict(state_dict)
        self._share()
