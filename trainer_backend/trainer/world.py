"""The ranks of one attempt: their process groups, and what they agree on before training.

Gradients go through the data group, whose timeout finds a rank that hangs. Numbers and texts go through
the control group, always gloo, whose timeout is a year: ranks wait there while a run is paused, and
while rank 0 saves.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist

from trainer_backend.engine.ranks import Ranks
from trainer_backend.errors import GradaccError, RankFailedError, RankLostError, UsageError, WindowLeft
from trainer_backend.recipe import Recipe
from trainer_backend.torchrun import MEETING_S, RankPlace, forget_announcements, loopback_only
from trainer_backend.trainer.failures import described
from trainer_backend.trainer.resume_check import DataFingerprint

DATA_TIMEOUT: Final = dt.timedelta(minutes=30)
CONTROL_TIMEOUT: Final = dt.timedelta(days=365)


class World:
    """This rank's view of all of them."""

    def __init__(self, place: RankPlace, ranks: Ranks) -> None:
        self.place = place
        self.ranks = ranks

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.place.leads

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.ranks.size

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what may fail on one rank alone: afterwards it has failed on all. Collective at its end.

        Nothing inside may be collective.
        """
        raised: BaseException | None = None
        try:
            yield
        except (RankLostError, RankFailedError, WindowLeft):
            raise
        except BaseException as error:  # noqa: BLE001 - raised once the others know
            raised = error
        self.ranks.settle(raised)

    def share(self, mine: Any) -> Any:  # noqa: ANN401 - anything that can be pickled
        """What rank 0 brings. Collective."""
        return self.ranks.gather(mine if self.leads else None)[0]

    def share_state(self, model: torch.nn.Module) -> None:
        """Parameters and buffers become rank 0's. Collective."""
        with self.ranks.talking():
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), src=0, group=self.ranks.group)

    def refuse_unlike_data(self, data: DataFingerprint) -> None:
        """Raises UsageError, on all ranks, where one's training data are others. Collective."""
        told = self.ranks.gather(data)
        for rank, other in enumerate(told):
            if other != told[0]:
                message = (
                    f"The training data of rank {rank} are not those of rank 0 ({_said(other)}, and"
                    f" {_said(told[0])}). Copy the same data to all machines."
                )
                raise UsageError(message)

    def compare(self, model: torch.nn.Module, step: int) -> None:
        """Raises GradaccError, on all ranks, where one's parameters are not rank 0's. Collective."""
        with torch.no_grad():
            own = float(sum(parameter.double().sum() for parameter in model.parameters()))
        sums = self.ranks.gather(own)
        unlike = [rank for rank, other in enumerate(sums) if str(other) != str(sums[0])]  # NaN is NaN
        if unlike:
            message = (
                f"After step {step} the parameters of rank {unlike[0]} are not rank 0's (sums"
                f" {sums[unlike[0]]!r} and {sums[0]!r}), so nothing is saved. Something in the task"
                " changes the model on one rank only. Resume from the last checkpoint."
            )
            raise GradaccError(message)

    def close(self) -> None:
        """Take the groups down."""
        if dist.is_initialized() and not self.ranks.are_lost:
            dist.destroy_process_group()


def join(place: RankPlace, recipe: Recipe, device: torch.device) -> World:
    """Meet the other ranks. Raises RankLostError where they do not come, UsageError where they are unlike."""
    os.environ.update(loopback_only())
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend, rank=place.rank, world_size=place.size, timeout=DATA_TIMEOUT, store=_store(place)
        )
        control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
    except RuntimeError as error:
        message = f"The {place.size} ranks did not meet: {str(error).splitlines()[0][:300]}"
        raise RankLostError(message) from error
    world = World(place, Ranks(dist.group.WORLD, device, control_group=control, describe=described))
    if place.leads:
        forget_announcements(place)
    _refuse_unlike(world, recipe)
    return world


def _store(place: RankPlace) -> Any:  # noqa: ANN401 - torch's own type
    """Where ranks of one machine find each other: a file."""
    store = dist.FileStore(place.store, place.size)  # type: ignore[attr-defined]  # torch does not name it in __all__
    store.set_timeout(dt.timedelta(seconds=MEETING_S))
    return store


def _said(data: DataFingerprint) -> str:
    length = "an unknown number of" if data.length is None else str(data.length)
    return f"{length} samples, fingerprint {(data.samples_sha256 or 'none')[:12]}"


def _refuse_unlike(world: World, recipe: Recipe) -> None:
    """Raises UsageError where a rank has another torch, another Python or another recipe."""
    text = recipe.text.encode()
    own = {
        "torch": torch.__version__,
        "Python": ".".join(map(str, sys.version_info[:3])),
        "recipe": hashlib.sha256(text).hexdigest()[:12],
    }
    told = world.ranks.gather(own)
    for rank, other in enumerate(told):
        for what, value in other.items():
            if value != told[0][what]:
                message = (
                    f"Rank {rank} has {what} {value}, and rank 0 has {told[0][what]}. All ranks of a run need"
                    " the same: bring the machines in line."
                )
                raise UsageError(message)
