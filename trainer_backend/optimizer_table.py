"""The optimizers that a recipe can name: one row each, read by config, form, settings and engine. No torch.

To add one, add its row to `OPTIMIZERS`; a keyword that no other takes needs a key in `OptimizerSection` too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec


class OptimizerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer: who makes it, and what it takes beside parameters, `lr` and `weight_decay`."""

    title: str
    """What people call it."""
    maker: str
    """`module:name` of its class, imported only when a run is made."""
    keys: tuple[str, ...]
    """Keys of the recipe's [optimizer] that it takes as keywords of the same names.

    The others mean nothing beside it: the form hides them."""
    found_inf: bool = False
    """Whether its fused kernels skip an update on the device by `found_inf`, without being waited for."""

    @property
    def has_beta2(self) -> bool:
        """Whether the decay of a mean square can be changed while it runs."""
        return "betas" in self.keys


OPTIMIZERS: Final[dict[str, OptimizerRow]] = {
    "adamw": OptimizerRow(
        title="AdamW", maker="torch.optim:AdamW", keys=("betas", "eps"), found_inf=True
    ),
    "sgd": OptimizerRow(
        title="SGD", maker="torch.optim:SGD", keys=("momentum", "nesterov"), found_inf=True
    ),
}  # fmt: skip
"""By the name that a recipe gives."""

if TYPE_CHECKING:
    OptimizerName: TypeAlias = str
else:
    OptimizerName = Literal[tuple(OPTIMIZERS)]


def names_that_take(key: str) -> tuple[str, ...]:
    """The optimizers beside which a key of [optimizer] means something; empty: all of them."""
    return tuple(name for name, row in OPTIMIZERS.items() if key in row.keys)


def keys_of_some() -> tuple[str, ...]:
    """The keys of [optimizer] that mean something beside some of the optimizers only."""
    return tuple(dict.fromkeys(key for row in OPTIMIZERS.values() for key in row.keys))


def keywords(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Of the recipe's values by key, those that an optimizer takes."""
    return {key: given[key] for key in OPTIMIZERS[name].keys if key in given}
