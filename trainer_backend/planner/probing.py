"""One micro-batch size, measured in this process: peak with the longest samples, time with usual ones."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import torch

from trainer_backend.data.stream import is_iterable
from trainer_backend.engine import Accumulator
from trainer_backend.engine.batches import tensors_of
from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.planner.pairs import Machine, Probe
from trainer_backend.recipe import Recipe
from trainer_backend.tasks.making import collate_of, datasets_of, make_task, method, model_of
from trainer_backend.trainer.assembly import accumulator_for, optimizer_for
from trainer_backend.trainer.devices import apply_process_settings, choose_device, choose_precision, describe

LOOKED_AT: Final = 512
"""Samples among which the longest are sought."""
MEASURE_S: Final = 1.5
FEWEST_WINDOWS: Final = 3
MOST_WINDOWS: Final = 40
SHARE_OF_DEVICE: Final = 0.95
SHARE_OF_HOST: Final = 0.85


class Prober:
    """Everything but the size: data read once, the model built once."""

    def __init__(self, recipe: Recipe) -> None:
        config = recipe.config
        self.device = choose_device(config.run.device)
        apply_process_settings(config.run, self.device)
        torch.manual_seed(config.run.seed)
        task = make_task(recipe, lambda *_: None)
        dataset = datasets_of(task).train
        self.samples = None if is_iterable(dataset) else len(dataset)
        self._collate = method(task, "collate_training") or collate_of(task)
        self._looked_at = looked_at(dataset)
        sizes = [numbers_in(sample) for sample in self._looked_at]
        self.longest, self.is_ragged = max(sizes), len(set(sizes)) > 1
        self._longest = self._looked_at[sizes.index(self.longest)]
        torch.manual_seed(config.run.seed)
        model = model_of(task).to(self.device)
        model.train()
        precision = choose_precision(config.run.precision, self.device)
        self._engine = accumulator_for(
            config, task, model, optimizer_for(config, task, model), self.device, precision,
            lambda _: None, lambda _: None, None,
        )  # fmt: skip
        self._engine.gradient_norm_every = 0
        self.idle_bytes = peak_bytes(self.device)

    @property
    def engine(self) -> Accumulator:
        """What is measured."""
        return self._engine

    def measure(self, size: int) -> Probe:
        """Peak and times of micro-batches of `size`; `fits` is False when memory ran out."""
        peak = self.peak(size)
        if peak is None:
            return Probe(size=size, fits=False)
        try:
            micro_s, step_s = self._times(size)
        except (RuntimeError, MemoryError) as error:
            self._free_after(error)
            return Probe(size=size, fits=False)
        return Probe(
            size=size, fits=True, idle_bytes=self.idle_bytes, peak_bytes=peak, micro_s=micro_s, step_s=step_s
        )

    def peak(self, size: int) -> int | None:
        """Most memory that micro-batches of `size` of the longest samples take; None when it ran out."""
        self._engine.micro_batch_ceiling = None
        try:
            self._window([self._longest] * size, 2)
            self._window([self._longest] * size, 2)  # optimizers make their state in the first step
        except (RuntimeError, MemoryError) as error:
            self._free_after(error)
            return None
        return None if self._ran_out() else peak_bytes(self.device)

    def _free_after(self, error: RuntimeError | MemoryError) -> None:
        """Goes on after an out-of-memory; raises what is another error."""
        if not is_out_of_memory(error):
            raise error
        free(self.device)

    def _ran_out(self) -> bool:
        """Whether the engine had to make the micro-batch smaller."""
        return self._engine.micro_batch_ceiling is not None

    def _times(self, size: int) -> tuple[float, float]:
        """Seconds a micro-batch and an optimizer step: by windows of one and of three micro-batches."""
        self.timed(size, 3)
        ones: list[float] = []
        threes: list[float] = []
        began = time.perf_counter()
        while len(ones) < FEWEST_WINDOWS or (
            time.perf_counter() - began < MEASURE_S and len(ones) < MOST_WINDOWS
        ):
            ones.append(self.timed(size, 1))
            threes.append(self.timed(size, 3))
        one, three = sorted(ones)[len(ones) // 4], sorted(threes)[len(threes) // 4]
        micro_s = max(1e-9, (three - one) / 2)
        return micro_s, max(0.0, one - micro_s)

    def timed(self, size: int, steps: int) -> float:
        """Seconds of a window of `steps` micro-batches of usual samples."""
        usual = list(itertools.islice(itertools.cycle(self._looked_at), size))
        return self._window(usual, steps)

    def _window(self, samples: Sequence[Any], steps: int) -> float:
        """Seconds that a window takes with its micro-batches collated beforehand."""
        batches = [self._collate(list(samples)) for _ in range(steps)]
        self._wait()
        began = time.perf_counter()
        self._engine.window(batches)
        self._engine.flush()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def machine_of(device: torch.device) -> Machine:
    """What the device has, what others use of it, and what a run may take."""
    facts = describe(device)
    if device.type == "cuda":
        free_bytes, total = torch.cuda.mem_get_info(device)
        other = total - free_bytes - torch.cuda.memory_reserved(device)
        share = SHARE_OF_DEVICE
    else:
        memory = psutil.virtual_memory()
        total = memory.total
        other = total - memory.available
        share = SHARE_OF_HOST
    return Machine(
        device=device.type, name=facts.name, total_bytes=total, other_bytes=max(0, other),
        limit_bytes=int(share * (total - max(0, other))),
    )  # fmt: skip


def peak_bytes(device: torch.device) -> int:
    """Most memory so far: reserved by torch on a GPU, resident of this process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    memory = psutil.Process().memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))


def looked_at(dataset: Any) -> list[Any]:  # noqa: ANN401 - any data set
    """Samples from all over the data set; the first ones where it has no length."""
    if is_iterable(dataset):
        return list(itertools.islice(iter(dataset), LOOKED_AT))
    many = len(dataset)
    step = max(1, many // LOOKED_AT)
    return [dataset[place] for place in itertools.islice(range(0, many, step), LOOKED_AT)]


def numbers_in(sample: Any) -> int:  # noqa: ANN401 - any sample
    """Numbers that a sample's tensors and lists hold: what makes it long."""
    tensors = sum(tensor.numel() for _, tensor in tensors_of(sample))
    return tensors or _plain_numbers(sample)


def _plain_numbers(sample: Any) -> int:  # noqa: ANN401 - any sample
    if isinstance(sample, dict):
        return max((_plain_numbers(entry) for entry in sample.values()), default=1)
    if isinstance(sample, Collection) and not isinstance(sample, str | bytes):
        return max(len(sample), max((_plain_numbers(part) for part in sample), default=1))
    return 1
