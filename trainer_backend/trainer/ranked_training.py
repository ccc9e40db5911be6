"""An attempt's torch side on one of several ranks: meet the others, take up the same, train together."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import msgspec
import psutil
import torch

from trainer_backend.protocol import Device, RunStarted
from trainer_backend.readings import Sampler
from trainer_backend.recipe import Recipe
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunFacts
from trainer_backend.torchrun import RankPlace
from trainer_backend.trainer.assembly import Parts, assemble
from trainer_backend.trainer.checkpoints import Checkpoints
from trainer_backend.trainer.devices import choose_rank_device
from trainer_backend.trainer.lifecycle import Lifecycle
from trainer_backend.trainer.loop import Loop
from trainer_backend.trainer.metric_history import MetricHistory
from trainer_backend.trainer.noise import NoiseWatch
from trainer_backend.trainer.provenance import Commit
from trainer_backend.trainer.ranked_checkpoints import RankedCheckpoints
from trainer_backend.trainer.ranked_loop import RankedLoop
from trainer_backend.trainer.ranked_rows import RankedRows
from trainer_backend.trainer.ranked_steering import RankedSteering
from trainer_backend.trainer.training import Training
from trainer_backend.trainer.world import join


class RankedTraining(Training):
    """As `Training`; every method is collective."""

    def __init__(
        self, run: RunDirectory, recipe: Recipe, life: Lifecycle, place: RankPlace, steering: RankedSteering
    ) -> None:
        self._device = choose_rank_device(recipe.config.run.device, place.local_rank)
        self._world = join(place, recipe, self._device)
        self._ranked = steering
        steering.ranks = self._world.ranks
        super().__init__(run, recipe, life, steering)

    def _checkpoints_of(self) -> Checkpoints:
        asked = self._recipe.config.checkpoint
        return RankedCheckpoints(self._run, asked, self._life, world=self._world, steering=self._ranked)

    def _assembled(self) -> Parts:
        parts = assemble(
            self._recipe,
            self._life.put,
            on_micro_batch=self._on_micro_batch,
            on_fact=self._on_fact,
            device=self._device,
            world=self._world,
        )
        self._rows = RankedRows(self._world.ranks, memory_of(self._device))
        parts.devices = _distinct(self._world.ranks.gather((platform.node(), parts.devices)))
        return parts

    def take_up(self, facts: RunFacts, *, replay: bool) -> None:
        """See `Training`; only rank 0 has read the journal."""
        has_trained = self._world.share(bool(facts.attempt))
        if self._world.leads:
            super().take_up(facts, replay=replay)
        elif has_trained:
            self._checkpoints.resume(self._built())
        self._replay, self._owed = self._world.share((self._replay, self._owed))

    def go_back(self, step: int, facts: RunFacts, *, stood_at: int) -> None:
        """See `Training`."""
        if self._world.leads:
            super().go_back(step, facts, stood_at=stood_at)
        else:
            self._checkpoints.go_back(self._built(), step)
        self._replay, self._owed = self._world.share((self._replay, self._owed))

    def _loop_of(self, parts: Parts) -> Loop:
        return RankedLoop(
            parts,
            self._checkpoints,
            self._ranked,
            self._put,
            world=self._world,
            rows=self._rows,
            **self._loop_options(),
        )

    def _evaluations_so_far(self, parts: Parts) -> MetricHistory:
        """See `Training`; only rank 0 has read the journal."""
        mine = super()._evaluations_so_far(parts) if self._world.leads else None
        found: MetricHistory = self._world.share(mine)
        return found

    def _noise_watch(self) -> NoiseWatch:
        return super()._noise_watch() if self._world.leads else NoiseWatch(self._life.put)

    def _sampler_of(self, parts: Parts) -> Sampler | None:
        return super()._sampler_of(parts) if self._world.leads else None

    def _judge(self) -> None:
        if self._world.leads:
            super()._judge()

    def _started(self, parts: Parts, commit: Commit) -> RunStarted:
        place = self._world.place
        hosts: list[str] = self._world.ranks.gather(platform.node())
        return msgspec.structs.replace(
            super()._started(parts, commit),
            launcher=place.launcher,
            generation=place.generation,
            hosts=tuple(hosts),
        )

    def close(self) -> None:
        """See `Training`."""
        super().close()
        self._world.close()


def memory_of(device: torch.device) -> Callable[[], tuple[int, int]]:
    """What tells the bytes that this rank holds at most, and all there are."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return lambda: (torch.cuda.max_memory_reserved(device), total)
    process, total = psutil.Process(), psutil.virtual_memory().total
    return lambda: (process.memory_info().rss, total)


def _distinct(told: list[tuple[str, tuple[Device, ...]]]) -> tuple[Device, ...]:
    """The devices of all ranks, each once: several processes may share a CPU."""
    found: dict[Any, Device] = {}
    for host, devices in told:
        for device in devices:
            found[host, device.kind, device.index, device.uuid] = device
    return tuple(found.values())
