"""The model that several benchmarks train: a small pre-norm transformer on bytes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from trainer_backend.tasks import LossTerm


class Block(nn.Module):
    """Causal attention and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """`x_btc` after attention and MLP."""
        b, t, c = x_btc.shape
        q, k, v = (
            self.qkv(self.first(x_btc)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btc = x_btc + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        out: torch.Tensor = x_btc + self.down(functional.gelu(self.up(self.second(x_btc))))
        return out


class Blocks(nn.Module):
    """A byte model."""

    def __init__(self, layers: int, width: int, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """Logits, (b, t, 256)."""
        return functional.linear(self.norm(self.blocks(self.embedding(tokens_bt))), self.embedding.weight)


def token_loss(model: nn.Module, batch_bt: torch.Tensor) -> LossTerm:
    """Cross-entropy of the next byte, summed; its weight is the number of bytes."""
    logits = model(batch_bt[:, :-1])
    target = batch_bt[:, 1:].reshape(-1)
    return LossTerm(functional.cross_entropy(logits.flatten(0, 1), target, reduction="sum"), target.numel())
