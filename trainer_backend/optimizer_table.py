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
    fixed: dict[str, Any] = {}
    """Keywords that are always given so."""
    state_bytes: float
    """Of its state in fp32, a parameter; what grows with rows and columns only is not counted."""
    found_inf: bool = False
    """Whether its fused kernels skip an update on the device by `found_inf`, without being waited for."""
    takes_embeddings: bool = False
    """Whether it has to know which 2-d parameters are tables."""
    second_moment: bool = True
    """Whether its second beta is the decay of a mean square, which a change of N may scale."""
    averages: bool = False
    """Whether it keeps an average of the weights itself, which evaluations and exports take."""
    needs_cuda: bool = False
    module: str = ""
    """What must be importable; empty: torch alone."""
    package: str = ""
    """What pip installs it by."""

    @property
    def has_beta2(self) -> bool:
        """Whether the decay of a mean square can be changed while it runs."""
        return "betas" in self.keys and self.second_moment

    @property
    def label(self) -> str:
        """What the form's choice says: what no test of ours has run is named so."""
        return f"{self.title} (CUDA; not proven here)" if self.needs_cuda else self.title


_BITSANDBYTES: Final[dict[str, Any]] = {"module": "bitsandbytes", "package": "bitsandbytes"}
_TIMM: Final[dict[str, Any]] = {"module": "timm", "package": "timm"}

OPTIMIZERS: Final[dict[str, OptimizerRow]] = {
    "adamw": OptimizerRow(
        title="AdamW",
        maker="torch.optim:AdamW",
        keys=("betas", "eps"),
        state_bytes=8,
        found_inf=True,
    ),
    "sgd": OptimizerRow(
        title="SGD",
        maker="torch.optim:SGD",
        keys=("momentum", "nesterov"),
        state_bytes=4,
        found_inf=True,
    ),
    "adafactor": OptimizerRow(
        title="Adafactor", maker="torch.optim:Adafactor", keys=(), state_bytes=0
    ),
    "muon": OptimizerRow(
        title="Muon, AdamW for the rest",
        maker="trainer_backend.engine.muon:MuonWithAdamW",
        keys=("betas", "eps"),
        state_bytes=4,
        takes_embeddings=True,
    ),
    "adamw-8bit": OptimizerRow(
        title="AdamW, state in 8 bits",
        maker="bitsandbytes.optim:AdamW8bit",
        keys=("betas", "eps"),
        state_bytes=2,
        **_BITSANDBYTES,
    ),
    "paged-adamw-8bit": OptimizerRow(
        title="AdamW, state in 8 bits, paged",
        maker="bitsandbytes.optim:PagedAdamW8bit",
        keys=("betas", "eps"),
        state_bytes=2,
        needs_cuda=True,
        **_BITSANDBYTES,
    ),
    "lion": OptimizerRow(
        title="Lion",
        maker="bitsandbytes.optim:Lion",
        keys=("betas",),
        state_bytes=4,
        second_moment=False,
        **_BITSANDBYTES,
    ),
    "schedule-free": OptimizerRow(
        title="Schedule-free AdamW",
        maker="schedulefree:AdamWScheduleFree",
        keys=("betas", "eps"),
        state_bytes=8,
        averages=True,
        module="schedulefree",
        package="schedulefree",
    ),
    "lamb": OptimizerRow(
        title="LAMB",
        maker="timm.optim:Lamb",
        keys=("betas", "eps"),
        fixed={"max_grad_norm": None},  # clipping is the recipe's
        state_bytes=8,
        **_TIMM,
    ),
    "lars": OptimizerRow(
        title="LARS",
        maker="timm.optim:Lars",
        keys=("momentum", "nesterov"),
        state_bytes=4,
        **_TIMM,
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
    """Of the recipe's values by key, those that an optimizer takes, and what it is always given."""
    row = OPTIMIZERS[name]
    return {key: given[key] for key in row.keys if key in given} | row.fixed
