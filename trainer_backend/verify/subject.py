"""What is certified: a task, its model as it stands, and real samples of its data."""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, Final, Literal

import torch

from trainer_backend.data.randomness import Draws, borrowed, mixed, seed_all
from trainer_backend.engine import batches
from trainer_backend.engine.batches import mapped, tensors_of
from trainer_backend.engine.own_generators import OwnGenerator, is_generator, own_generators
from trainer_backend.engine.private_api import BATCH_NORM
from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.tasks import Batch, LossTerm, Task
from trainer_backend.tasks.making import method
from trainer_backend.verify.report import ComputePrecision
from trainer_backend.verify.torch_modes import ControlledRun, LossCall, in_fp64, switch_off_dropout

DTYPES: Final = {
    "fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip
DECOYS: Final = 4
"""Samples of the windows before the one that counts."""
_SEED: Final = 20_011
"""Of what the certificate draws; any will do."""


class Subject:
    """A task with samples, ready to be run in any precision, in any parts, without chance.

    `samples`: the large batch. `decoys`: other samples, for the windows before the one that counts.
    """

    def __init__(
        self,
        task: Task,
        samples: Sequence[Any],
        decoys: Sequence[Any],
        *,
        collate: Callable[[list[Any]], Batch],
        device: torch.device,
        precision: ComputePrecision = "fp32",
        gradient_dtype: Literal["fp32", "parameter"] = "fp32",
        micro_batch_size: int = 8,
    ) -> None:
        self.task = task
        self.samples = list(samples)
        self.decoys = list(decoys) or self.samples[:1]
        self.device = device
        self.precision: ComputePrecision = precision
        self.gradient_dtype = gradient_dtype
        self.micro_batch_size = micro_batch_size
        self.smallest = 1
        """Fewest samples a micro-batch may have: 2 where BatchNorm is in train mode."""
        self.by_splitting = False
        """Cut the one collated batch instead of collating parts: where collating itself draws lots."""
        self._collate = collate
        self._draws = Draws(task, collate)
        with borrowed():
            seed_all(_SEED)
            self._model = task.model()
        switch_off_dropout(self._model)
        self._out_of_reach = list(_generators_of_modules(task, collate, *self._model.modules()))
        self.drawn_from: set[str] = set()
        """Paths of the generators of the user's own that passes have drawn from."""
        # A forward that was set on the module itself (activation checkpointing does so) belongs to
        # this very module, and a copy of it would run this one's weights.
        self._can_be_copied = not any("forward" in vars(module) for module in self._model.modules())
        if self.batch_norms():
            self.smallest = 2

    # ---------------------------------------------------------------------------------- the model

    @property
    def prototype(self) -> torch.nn.Module:
        """The model on the CPU, in its own dtype; not to be run."""
        return self._model

    def batch_norms(self) -> tuple[str, ...]:
        """Modules that normalise by the statistics of the micro-batch."""
        return tuple(
            name
            for name, module in self._model.named_modules()
            if isinstance(module, BATCH_NORM) and (module.training or not module.track_running_stats)
        )

    def model(self, precision: ComputePrecision, *, freeze_batch_norm: bool = False) -> torch.nn.Module:
        """A fresh copy in fp64, or in its own dtype, on the device."""
        made = self._copy()
        if precision == "fp64":
            made = made.double()
            _take_experts_one_by_one(made)
        made = made.to(self.place(precision))
        if freeze_batch_norm:
            for name in self.batch_norms():
                module = made.get_submodule(name)
                assert isinstance(module, BATCH_NORM)
                module.eval()
                if not module.track_running_stats:
                    module.running_mean = torch.zeros_like(module.weight)
                    module.running_var = torch.ones_like(module.weight)
                    module.track_running_stats = True
        return made

    def _copy(self) -> torch.nn.Module:
        """A model of its own with the same weights."""
        if self._can_be_copied:
            try:
                return copy.deepcopy(self._model)
            except (RuntimeError, TypeError, ValueError):  # weights made by hooks, open files, locks …
                self._can_be_copied = False
        with borrowed():
            made = self.task.model()
        made.load_state_dict(self._model.state_dict())
        switch_off_dropout(made)
        return made

    def place(self, precision: ComputePrecision) -> torch.device:
        """Where a precision runs: Apple's GPUs have no fp64."""
        return torch.device("cpu") if precision == "fp64" and self.device.type == "mps" else self.device

    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters that get a gradient."""
        return tuple(name for name, value in self._model.named_parameters() if value.requires_grad)

    @property
    def parameters(self) -> int:
        """How many numbers of the model are trained."""
        return sum(value.numel() for value in self._model.parameters() if value.requires_grad)

    # --------------------------------------------------------------------------------- the batches

    def batch(self, numbers: Sequence[int], *, decoy: bool = False) -> Batch:
        """Samples by number, collated on the host."""
        source = self.decoys if decoy else self.samples
        with self._draws.borrowed():
            self._draws.seed(mixed(_SEED, 1, len(numbers), *numbers))
            return self._collate([source[number] for number in numbers])

    def parts(
        self, sizes: Sequence[int], precision: ComputePrecision, *, order: Sequence[int] | None = None
    ) -> list[Batch]:
        """The large batch cut in parts of these sizes, floats in fp64 where that runs."""
        total = sum(sizes)
        numbers = list(order) if order is not None else list(range(total))
        if self.by_splitting:
            cut = self._split_in(self.batch(numbers), sizes)
        else:
            edges = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
            cut = [self.batch(numbers[low:high]) for low, high in itertools.pairwise(edges)]
        return [self.cast(part, precision) for part in cut]

    def cast(self, batch: Batch, precision: ComputePrecision) -> Batch:
        """A batch as a precision needs it: floats in fp64, or as they are."""
        return mapped(batch, _widened) if precision == "fp64" else batch

    def _split_in(self, batch: Batch, sizes: Sequence[int]) -> list[Batch]:
        """By the task's own `split`, as after out of memory: single samples, or equal parts."""
        if len(sizes) == 1:
            return [batch]
        return list(self.split(batch, len(sizes)))

    def split(self, batch: Batch, parts: int) -> Sequence[Batch]:
        """The task's `split`, or the engine's own."""
        own = getattr(self.task, "split", None)
        cut: Sequence[Batch] = own(batch, parts) if callable(own) else batches.split(batch, parts)
        return cut

    def collates_the_same_twice(self) -> bool:
        """Whether collating draws no lots."""
        numbers = range(min(4, len(self.samples)))
        one, two = (dict(tensors_of(self.collated(numbers, seed))) for seed in (1, 2))
        return one.keys() == two.keys() and all(
            one[key].shape == two[key].shape and torch.equal(one[key], two[key]) for key in one
        )

    def collated(self, numbers: Sequence[int], seed: int) -> Batch:
        """Samples by number, collated with random numbers of this seed."""
        with self._draws.borrowed():
            self._draws.seed(seed)
            return self._collate([self.samples[number] for number in numbers])

    def is_out_of_reach(self, path: str) -> bool:
        """Whether a generator is no attribute of model or task, so that a replay cannot take it back."""
        return any(own.path == path for own in self._out_of_reach)

    # ------------------------------------------------------------------------------------ running

    @contextmanager
    def controlled(
        self,
        model: torch.nn.Module,
        precision: ComputePrecision,
        *,
        seed: int | None = 0,
        heard: list[LossCall] | None = None,
    ) -> Iterator[None]:
        """Around forward and backward: dropout off, chance from `seed` (None: as it comes)."""
        with ExitStack() as stack:
            stack.enter_context(borrowed())
            stack.enter_context(self._own_generators(model, seed))
            if seed is not None:
                seed_all(mixed(_SEED, seed))
                if self.device.type == "cuda":
                    torch.cuda.manual_seed(_SEED + seed)
            if precision == "fp64":
                stack.enter_context(in_fp64())
            stack.enter_context(ControlledRun(widen=precision == "fp64", heard=heard))
            yield

    @contextmanager
    def _own_generators(self, model: torch.nn.Module, seed: int | None) -> Iterator[None]:
        """Around a pass: the user's own generators are seeded, noted where they were used, and put back."""
        found = [*own_generators(model, self.task), *self._out_of_reach]
        before = [own.get_state() for own in found]
        for number, own in enumerate(found if seed is not None else ()):
            own.seed(mixed(_SEED, seed or 0, number))
        seeded = [own.packed() for own in found]
        try:
            yield
        finally:
            self.drawn_from |= {
                own.path
                for own, state in zip(found, seeded, strict=True)
                if not torch.equal(own.packed(), state)
            }
            for own, state in zip(found, before, strict=True):
                own.set_state(state)

    def loss(self, model: torch.nn.Module, batch: Batch) -> LossTerm | Iterable[LossTerm]:
        """The task's loss, as runs take it."""
        return self.task.loss(model, batch)

    def definition(self, model: torch.nn.Module, batch: Batch) -> LossTerm | Iterable[LossTerm]:
        """The loss as it is defined, where the task computes the same sum another way when it runs."""
        defined = method(self.task, "definition")
        given: LossTerm | Iterable[LossTerm] = (defined or self.task.loss)(model, batch)
        return given


def _generators_of_modules(*makers: Any) -> Iterator[OwnGenerator]:  # noqa: ANN401 - any objects
    """Generators that lie in the Python modules in which these objects' classes or functions are written."""
    names = {
        name
        for maker in makers
        for name in (getattr(maker, "__module__", None), type(maker).__module__)
        if name is not None
    }
    for name in sorted(names):
        for key, value in list(vars(sys.modules[name]).items()) if name in sys.modules else ():
            if is_generator(value):
                yield OwnGenerator(f"{name}.{key}", value)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def take_samples(dataset: Any, many: int, *, seed: int) -> tuple[list[Any], list[Any]]:  # noqa: ANN401 - any data set
    """`many` samples and a few others, drawn from the data. Raises UsageError."""
    others = DECOYS
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        length = len(dataset)
        drawn = torch.randperm(length, generator=torch.Generator().manual_seed(mixed(seed, _SEED) >> 1))
        indices = drawn[: many + others].tolist()
        taken = [_sample(dataset, index, seed) for index in indices]
    else:
        with borrowed():
            seed_all(mixed(seed, 0))
            taken = list(islice(iter(dataset), many + others))
    if len(taken) < 2:
        message = f"The training data has {len(taken)} sample(s); a certificate needs at least 2."
        raise UsageError(message)
    if len(taken) <= many:  # a small data set: all of it is the large batch, and its start the decoy
        return taken, taken[: max(1, len(taken) // 2)]
    return taken[:many], taken[many:]


def _sample(dataset: Any, index: int, seed: int) -> Any:  # noqa: ANN401 - any sample
    with borrowed():
        seed_all(mixed(seed, 0, index))
        return dataset[index]


def check_finite(value: float | None, what: str) -> None:
    """Raises GradaccError when a number that must be known is not."""
    if value is not None and not math.isfinite(value):
        message = f"{what} is {value} for the samples taken: look at the data or the loss before certifying."
        raise GradaccError(message)


def _take_experts_one_by_one(model: torch.nn.Module) -> None:
    """The library's kernels that take all experts at once know no fp64; a loop over them does, alike."""
    for module in model.modules():
        switch = getattr(module, "set_experts_implementation", None)
        chosen = getattr(getattr(module, "config", None), "_experts_implementation", None)
        if callable(switch) and chosen not in (None, "eager"):
            switch("eager")
