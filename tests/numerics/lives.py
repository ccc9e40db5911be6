"""Random lives of a run: windows in which anything goes wrong, checkpoints, and kills between them.

What the optimizer is handed in each window is held against a reference that keeps all samples.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import safetensors.torch
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.numerics.probes import RELATIVE, SmallGPT, relative_error
from trainer_backend.data.order import DataPosition
from trainer_backend.engine import Accumulator, Collated, LossTerm, WindowResult
from trainer_backend.settings import Settings
from trainer_backend.trainer.checkpoint import Saved
from trainer_backend.trainer.saving import Standing, put_back, take_out

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."
WEIGHTS = torch.tensor([0.0, 0.5, 1.0, 3.0, 0.1], dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class Window:
    """One window: its micro-batches, what goes wrong in it, and what comes after it."""

    seed: int
    sizes: tuple[int, ...]
    """Samples in each micro-batch; so N is how many there are."""
    bad: frozenset[int]
    """Samples that are NaN."""
    weightless: bool
    fits: int
    """Samples that memory holds, in a forward or backward."""
    phase: Literal["forward", "backward", "optimizer", ""]
    regrow: bool
    """Before it, larger micro-batches are asked for again."""
    then: Literal["", "save", "kill"]


def lives(largest: int, longest: int) -> st.SearchStrategy[list[Window]]:
    """Some windows of up to `longest` micro-batches of up to `largest` samples."""
    window = st.builds(
        Window,
        seed=st.integers(0, 2**31),
        sizes=st.lists(st.integers(1, largest), min_size=1, max_size=longest).map(tuple),
        bad=st.just(frozenset[int]()) | st.frozensets(st.integers(0, 8), max_size=2),
        weightless=st.sampled_from([False] * 5 + [True]),
        fits=st.integers(1, largest),
        phase=st.sampled_from(["forward", "backward", "optimizer", ""]),
        regrow=st.booleans(),
        then=st.sampled_from(["", "save", "kill"]),
    )
    return st.lists(window, min_size=2, max_size=5)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples of one micro-batch: their numbers, data, a target and a weight for each element."""

    number: torch.Tensor
    x: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor
    bump: torch.Tensor
    """Added to a sample's first activations: 0, or NaN."""


Total = Callable[[nn.Module, Batch], torch.Tensor]


class Linear(nn.Module):
    """The linear probe with four parameters, so that nothing cancels in all of them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, dtype=torch.float64))


def linear_total(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Minus the weighted sum of w·y."""
    assert isinstance(model, Linear)
    rows = batch.x.double() + batch.bump[:, None]
    return -((rows @ model.w) * batch.weight[:, 0]).sum()


class NormedGPT(SmallGPT):
    """The small GPT, with BatchNorm over its embedded tokens or without."""

    def __init__(self, *, normed: bool) -> None:
        super().__init__(context=5)
        self.batch_norm = nn.BatchNorm1d(12).double() if normed else None

    def bumped(self, tokens_bt: torch.Tensor, bump_b: torch.Tensor) -> torch.Tensor:
        """Logits of tokens whose embeddings are moved, (b, t, vocabulary)."""
        x_btc = self.embedding(tokens_bt) + self.place + bump_b[:, None, None]
        if self.batch_norm is not None:
            x_btc = self.batch_norm(x_btc.flatten(0, 1)).view_as(x_btc)
        for block in self.blocks:
            x_btc = block(x_btc)
        return functional.linear(self.norm(x_btc), self.embedding.weight)


def gpt_total(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy of each token, by its weight."""
    assert isinstance(model, NormedGPT)
    logits = model.bumped(batch.x, batch.bump).flatten(0, 1)
    each = functional.cross_entropy(logits, batch.target.flatten(), reduction="none")
    return (each * batch.weight.flatten()).sum()


def batches_of(window: Window, width: int) -> list[Batch]:
    """Its micro-batches; data are drawn from its seed."""
    generator = torch.Generator().manual_seed(window.seed)
    made, first = [], 0
    for many in window.sizes:
        number = torch.arange(first, first + many)
        first += many
        bad = torch.tensor([int(one) in window.bad for one in number])
        drawn = WEIGHTS[torch.randint(len(WEIGHTS), (many, width), generator=generator)]
        drawn = torch.zeros_like(drawn) if window.weightless else drawn
        made.append(
            Batch(
                number,
                torch.randint(11, (many, width), generator=generator),
                torch.randint(11, (many, width), generator=generator),
                torch.where(bad[:, None], 1.0, drawn),  # what has no weight is not judged
                torch.where(bad, math.nan, 0.0).double(),
            )
        )
    return made


def picked(batches: Sequence[Batch], numbers: Sequence[int]) -> Batch:
    """The samples with these numbers, as one batch."""
    columns = zip(*[dataclasses.astuple(one) for one in batches], strict=True)
    rows = torch.tensor(numbers, dtype=torch.long)
    return Batch(*[torch.cat(column)[rows] for column in columns])


def reference(
    model: nn.Module, total: Total, parts: Sequence[Batch], limit: float | None
) -> dict[str, torch.Tensor]:
    """All samples at once: one sum over one weight, one backward, clipped.

    `parts`: one large batch; or the micro-batches, where they are the definition (BatchNorm).
    """
    sums = torch.stack([total(model, part) for part in parts]).sum()
    loss = sums / torch.stack([part.weight[:, : columns(model)].sum() for part in parts]).sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    norm = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
    clip = 1.0 if limit is None else min(1.0, limit / norm)
    return {name: gradient * clip for name, gradient in zip(names, gradients, strict=True)}


def columns(model: nn.Module) -> int:
    """How many elements of a sample have a weight: the linear probe's has one, the GPT's each token."""
    return 1 if isinstance(model, Linear) else 5


class _Refuses(torch.autograd.Function):
    """Passes a tensor on; its backward runs out of memory. Made first, it is reached last."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """`x`."""
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *_gradients: torch.Tensor) -> Any:
        """Refuse."""
        raise RuntimeError(NO_MEMORY)


class Run:
    """A model in training. After a kill a new one is made, and put back where the checkpoint says."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        total: Total,
        **options: Any,
    ) -> None:
        self.model = model
        self.handed: dict[str, torch.Tensor] = {}
        """The gradients that the optimizer was given last."""
        self.ran: list[list[int]] = []
        """Sample numbers of each micro-batch whose forward was begun, in order."""
        self._total = total
        self._window: Window | None = None
        self._step_fails = False
        optimizer.register_step_pre_hook(self._before_step)
        self.accumulator = Accumulator(
            model, optimizer, self._loss, snapshot_step=True, non_finite_limit=99, **options
        )

    def window(self, window: Window, batches: list[Batch]) -> WindowResult:
        """One window, with its troubles."""
        self._window, self._step_fails = window, window.phase == "optimizer"
        self.handed, self.ran = {}, []
        if window.regrow:
            self.accumulator.micro_batch_ceiling = None
        return self.accumulator.window(
            Collated(one, samples=len(one.x), tokens=0, indices=tuple(one.number.tolist())) for one in batches
        )

    def _loss(self, model: nn.Module, batch: Batch) -> LossTerm:
        assert self._window is not None
        self.ran.append(batch.number.tolist())
        refuses = len(batch.x) > self._window.fits
        deep = next(model.parameters())
        if refuses and self._window.phase == "backward":
            deep = _Refuses.apply(deep)
        total = self._total(model, batch) + 0.0 * deep.sum()
        if refuses and self._window.phase == "forward":
            raise RuntimeError(NO_MEMORY)
        return LossTerm(total, batch.weight[:, : columns(model)].sum())

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note the gradients; a step that fails has changed something by then."""
        self.handed = {
            name: parameter.grad.clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        if self._step_fails:
            self._step_fails = False
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(1.0)
                    for value in optimizer.state[parameter].values():
                        value.mul_(0.3)
            raise RuntimeError(NO_MEMORY)

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and the optimizer's state."""
        state = self.accumulator.optimizer.state
        return [
            tensor.detach()
            for parameter in self.model.parameters()
            for tensor in (parameter, *(value for _, value in sorted(state[parameter].items())))
        ]

    def saved(self) -> tuple[bytes, bytes, str]:
        """A checkpoint as its files hold it."""
        settings = Settings(
            accumulation_steps=1, micro_batch_size=1, learning_rate=1.0, max_grad_norm=None,
            weight_decay=0.0, beta2=None, ema_decay=None,
        )  # fmt: skip
        out = take_out(
            self.accumulator,
            Standing(settings=settings, position=DataPosition(), horizon_samples=None, recipe={}),
        )
        return safetensors.torch.save(out.model), safetensors.torch.save(out.training), json.dumps(out.state)

    def put_back(self, saved: tuple[bytes, bytes, str]) -> None:
        """Stand where that checkpoint was taken."""
        model, training = (safetensors.torch.load(content) for content in saved[:2])
        put_back(self.accumulator, Saved(model, training, json.loads(saved[2])))


def live(
    life: Sequence[Window], make: Callable[[], Run], total: Total, policy: str, limit: float | None
) -> None:
    """Live that life; each window is checked, and a window that a kill makes run again is the same."""
    run = make()
    saved, saved_at, index = run.saved(), 0, 0
    first_time: dict[int, tuple[dict[str, torch.Tensor], bytes]] = {}
    while index < len(life):
        window = life[index]
        calm = make()
        calm.put_back(run.saved())
        check(run, window, total, policy, limit)
        if window.phase == "optimizer":
            check_step(run, calm, window)
        state = safetensors.torch.save(run.model.state_dict())
        again = index in first_time
        if again:
            handed, weights = first_time[index]
            assert handed.keys() == run.handed.keys()
            assert all(torch.equal(handed[name], run.handed[name]) for name in handed)
            assert weights == state
        first_time[index] = (run.handed, state)
        index += 1
        if window.then == "save":
            saved, saved_at = run.saved(), index
        elif window.then == "kill" and not again:
            run = make()
            run.put_back(saved)
            index = saved_at


def check(run: Run, window: Window, total: Total, policy: str, limit: float | None) -> None:
    """Run a window, and hold what it gave against the reference."""
    twin = type_of(run.model)
    twin.load_state_dict(run.model.state_dict())
    batches = batches_of(window, columns_of_data(run.model))
    numbers = list(range(sum(window.sizes)))
    bad = window.bad & set(numbers)
    result = run.window(window, batches)
    named = {number for fact in result.non_finite for number in fact.sample_indices}
    assert bad <= named <= set(numbers)
    assert all(bad & set(fact.sample_indices) for fact in result.non_finite)
    last_pass = run.ran[len(run.ran) - result.micro_batches :]
    kept = sorted(number for part in last_pass for number in part)
    if not bad or policy == "drop":
        assert kept == [number for number in numbers if number not in named]
    everything = picked(batches, kept)
    weight = float(everything.weight[:, : columns(run.model)].sum()) if kept else 0.0
    skipped = ("non-finite" if bad else "empty") if not weight or (bad and policy == "skip") else ""
    assert (result.skipped, result.samples) == (skipped, len(numbers))
    normed = bool(list(twin.buffers()))
    parts = [picked(batches, part) for part in last_pass] if normed else [everything]
    if skipped:
        assert run.handed == {}
    else:
        right = reference(twin, total, parts, limit)
        assert relative_error(run.handed, right) <= RELATIVE
    if skipped == "empty" and normed:
        for part in parts:
            total(twin, part)
    for found, wanted in zip(run.model.buffers(), twin.buffers(), strict=True):
        assert torch.allclose(found, wanted, rtol=RELATIVE, atol=0)
    weighty = [part for part in last_pass if picked(batches, part).weight[:, : columns(run.model)].any()]
    check_recovery(window, result, last_pass if window.phase == "forward" else weighty)
    assert all(parameter.grad is None for parameter in run.model.parameters())


def check_step(run: Run, calm: Run, window: Window) -> None:
    """A step that was made again has left what it leaves where memory suffices, state included."""
    for group in calm.accumulator.optimizer.param_groups:
        group["foreach"] = False  # as the second try is made
    calm.window(dataclasses.replace(window, phase=""), batches_of(window, columns_of_data(run.model)))
    for one, other in zip(run.tensors(), calm.tensors(), strict=True):
        assert torch.equal(one, other)


def check_recovery(window: Window, result: WindowResult, ran: Sequence[Sequence[int]]) -> None:
    """What ran fitted (nothing without a weight has a backward), and what was said names the phase."""
    phases = {fact.phase for fact in result.out_of_memory}
    match window.phase:
        case "forward" | "backward":
            assert all(len(part) <= window.fits for part in ran)
            assert phases <= {window.phase}
        case "optimizer":
            assert phases == ({"optimizer"} if not result.skipped else set())
        case _:
            assert phases == set()


def type_of(model: nn.Module) -> nn.Module:
    """Another model of the same kind."""
    return NormedGPT(normed=model.batch_norm is not None) if isinstance(model, NormedGPT) else Linear()


def columns_of_data(model: nn.Module) -> int:
    """Elements of a sample."""
    return 5 if isinstance(model, NormedGPT) else 4
