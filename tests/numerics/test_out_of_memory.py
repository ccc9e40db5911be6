"""Out of memory: injected at every place, and real ones under RLIMIT_AS, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.numerics.probes import (
    RELATIVE,
    SmallGPT,
    Tokens,
    gpt_loss,
    joined,
    large_batch_gradient,
    probe,
    probe_loss,
    relative_error,
    rows,
    y,
)
from trainer_backend.engine import Accumulator, Collated, LossTerm, StepOutOfMemory
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Event, MicroBatchMeasured, OutOfMemoryRecovered

CPU_REFUSES = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
)


class Refuses(torch.autograd.Function):
    """Passes a tensor on; its backward runs out of memory, after parts of the graph have their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, error: Exception) -> torch.Tensor:
        """`x`."""
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> Any:
        """Refuse."""
        raise ctx.error


def refusing(
    loss: Callable[[nn.Module, Tokens], LossTerm], above: int, phase: str, error: Exception
) -> Callable[[nn.Module, Tokens], LossTerm]:
    """`loss`, out of memory in `phase` for more than `above` samples."""

    def limited(model: nn.Module, batch: Tokens) -> LossTerm:
        if len(batch.x) <= above:
            return loss(model, batch)
        if phase == "forward":
            model(batch.x)
            raise error
        term = loss(model, batch)
        deep = Refuses.apply(model.get_parameter("blocks.0.down.weight"), error)
        return LossTerm(term.total + 0 * deep.sum(), term.weight)

    return limited


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize(("size", "above", "now"), [(8, 4, 4), (8, 1, 1), (6, 2, 1), (5, 3, 2)])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError(CPU_REFUSES)])
def test_the_window_is_replayed_in_smaller_micro_batches_with_the_same_gradient(
    phase: str, size: int, above: int, now: int, error: Exception
) -> None:
    """Each sample enters once, with its weight; what now holds is told, and remembered."""
    torch.manual_seed(0)
    model = SmallGPT(context=16)
    valid = [(7 * i) % 17 for i in range(3 * size)]
    samples = rows(valid)
    batches = [joined(samples[i : i + size]) for i in range(0, 3 * size, size)]
    facts: list[Event] = []
    told: list[MicroBatchMeasured] = []
    accumulator = Accumulator(
        model, torch.optim.SGD(model.parameters(), 0.1), refusing(gpt_loss, above, phase, error),
        on_fact=facts.append, on_micro_batch=told.append,
    )  # fmt: skip
    gradients, result = accumulator.gradients(batches)
    right = large_batch_gradient(model, lambda: gpt_loss(model, joined(samples)))
    assert relative_error(gradients, right) <= RELATIVE
    assert (result.samples, result.micro_batch_size <= above) == (3 * size, True)
    assert accumulator.micro_batch_ceiling == now
    last = facts[-1]
    assert isinstance(last, OutOfMemoryRecovered)
    assert (last.phase, last.micro_batch_size, last.effective_batch) == (phase, now, 3 * size)
    assert last.accumulation_steps == result.micro_batches
    assert sum(event.samples for event in told) == 3 * size
    many = len(facts)
    accumulator.gradients(batches)
    assert len(facts) == many, "the ceiling is remembered"


def test_a_sentence_is_said_when_one_sample_does_not_fit() -> None:
    """With the sample's number; and nothing is left behind."""
    model = SmallGPT(context=16)
    loss = refusing(gpt_loss, 0, "backward", RuntimeError(CPU_REFUSES))
    accumulator = Accumulator(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    with pytest.raises(GradaccError, match=r"single sample in the micro-batch \(sample 31\)"):
        accumulator.window([Collated(joined(rows([3, 4])), indices=(31, 32))])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert accumulator.samples_seen == 0


def test_another_runtime_error_is_not_taken_for_out_of_memory() -> None:
    """It goes through as it is."""

    def loss(model: nn.Module, batch: torch.Tensor) -> LossTerm:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    _, accumulator = probe(loss=loss)
    with pytest.raises(RuntimeError, match="mat1"):
        accumulator.window([y(1.0, 2.0)])


def test_buffers_and_random_numbers_are_those_of_the_windows_start() -> None:
    """Dropout masks of the replay are drawn again from the same generator state."""
    seen = []

    def loss(model: nn.Module, batch: torch.Tensor) -> LossTerm:
        counted = model.get_buffer("counted")
        seen.append((len(batch), torch.rand(1).item(), counted.item()))
        counted += 1
        if len(batch) > 2:
            raise RuntimeError(CPU_REFUSES)
        return probe_loss(model, batch)

    model, _ = probe()
    model.register_buffer("counted", torch.zeros(()))
    accumulator = Accumulator(model, torch.optim.SGD(model.parameters(), 1.0), loss)
    accumulator.window([y(1.0), y(2.0, 3.0, 4.0, 5.0)])
    assert [many for many, _, _ in seen] == [1, 4, 1, 2, 2]
    assert seen[2][1:] == seen[0][1:]
    assert model.get_buffer("counted").item() == 3


class Stingy(torch.optim.AdamW):
    """AdamW that changes a moment and then runs out of memory, at the calls it is told."""

    def __init__(self, *args: Any, at: set[int], **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls, self.at = 0, at

    def step(self, closure: Any = None) -> Any:
        """As AdamW, or half a step and an error."""
        self.calls += 1
        if self.calls in self.at:
            for state in self.state.values():
                state["exp_avg"].mul_(0.3)
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)
            raise RuntimeError(CPU_REFUSES)
        return super().step(closure)


@pytest.mark.parametrize("at", [{1}, {2}, {3}])
def test_a_failed_optimizer_step_is_undone_and_made_again(at: set[int]) -> None:
    """With a snapshot: parameters and state end as if memory had sufficed."""
    ends = []
    for fail in (set[int](), at):
        torch.manual_seed(1)
        model = SmallGPT(context=16)
        optimizer = Stingy(model.parameters(), at=fail, lr=1e-2, foreach=True)
        accumulator = Accumulator(model, optimizer, gpt_loss, snapshot_step=True, max_grad_norm=0.1)
        facts = [accumulator.window(rows([4, 9], seed=i)).out_of_memory for i in range(3)]
        assert [fact[0].phase for fact in facts if fact] == ["optimizer"] * len(fail)
        ends.append(
            [p.detach().clone() for p in model.parameters()]
            + [s["exp_avg"] for s in optimizer.state.values()]
        )
    assert all(torch.allclose(a, b, rtol=RELATIVE, atol=0) for a, b in zip(*ends, strict=True))


def test_without_a_snapshot_a_failed_step_asks_for_the_checkpoint() -> None:
    """Nothing is tried again on parameters that may have changed."""
    model = SmallGPT(context=16)
    optimizer = Stingy(model.parameters(), at={2}, lr=1e-2, foreach=True)
    accumulator = Accumulator(model, optimizer, gpt_loss)
    accumulator.window(rows([4]))
    with pytest.raises(StepOutOfMemory, match="last checkpoint"):
        accumulator.window(rows([4]))
    assert optimizer.calls == 2


def test_a_batch_that_cannot_be_split_is_named() -> None:
    """By the entry whose rows do not agree, by its type, or by what `split` returned."""

    def refuses(model: nn.Module, batch: Any) -> LossTerm:
        raise RuntimeError(CPU_REFUSES)

    for batch, options, words in (
        ({"x": torch.zeros(4, 2), "graph": torch.zeros(9)}, {}, r"\['graph'\] has 9 rows"),
        ([1, 2, 3], {"count": lambda _: (3, 3)}, "list cannot be split"),
        (y(1.0, 2.0), {"split": lambda b, _: [b]}, r"returned 1 part"),
        (y(1.0, 2.0), {"split": lambda b, _: [b, b]}, "exactly one part"),
    ):
        _, accumulator = probe(loss=refuses, **options)
        with pytest.raises(GradaccError, match=words):
            accumulator.window([batch])


REAL = """
    import resource, sys
    import torch
    from torch import nn
    from trainer_backend.engine import Accumulator, LossTerm
    from trainer_backend.errors import GradaccError

    torch.set_num_threads(1)
    torch.manual_seed(0)
    phase = sys.argv[1]
    many = 4 if phase == "optimizer" else 256

    def made():
        torch.manual_seed(0)
        if phase == "optimizer":  # many tensors, so that one at a time needs far less than all at once
            return nn.Sequential(*[nn.Linear(1000, 1000) for _ in range(10)]).double()
        return nn.Sequential(nn.Linear(8, 20_000), nn.Sigmoid(), nn.Linear(20_000, 1)).double()

    model = made()
    x = torch.randn(many, model[0].in_features).double()

    def loss(model, x):
        return LossTerm(model(x).square().sum(), len(x))

    def limit(room_mib):
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        room = resource.RLIM_INFINITY if room_mib is None else used + room_mib * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))

    def error(found, right):
        return max(float((a - b).norm() / b.norm()) for a, b in zip(found, right))

    def mean_gradient(model):
        weights = list(model.parameters())
        parts = [torch.autograd.grad(loss(model, part).total / many, weights) for part in x.split(2)]
        return [sum(part) for part in zip(*parts)]

    if phase == "optimizer":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    accumulator = Accumulator(model, optimizer, loss, snapshot_step=True)
    accumulator.window([x[:2]])
    right = mean_gradient(model)
    windows = 1
    rooms = range(200, 700, 20) if phase == "optimizer" else range(2, 300, 6)  # it holds all gradients
    for room_mib in rooms:
        accumulator.micro_batch_ceiling = None
        for group in optimizer.param_groups:
            group["foreach"] = True
        limit(room_mib)
        try:
            if phase == "optimizer":
                result = accumulator.window([x[:2], x[2:]])
                windows += 1
            else:
                found, result = accumulator.gradients([x])
        except GradaccError:  # no room for one sample, or for one parameter: nothing was changed
            continue
        finally:
            limit(None)
        phases = [fact.phase for fact in result.out_of_memory]
        assert result.samples == many
        wrong = 0.0 if phase == "optimizer" else error(found.values(), right)
        assert wrong < 1e-12, wrong
        if phase in phases:
            break
    print(room_mib, phases, [fact.micro_batch_size for fact in result.out_of_memory])
    assert phase in phases, phases
    if phase == "optimizer":  # the same windows again, with memory enough
        twin = made()
        plain = torch.optim.AdamW(twin.parameters(), lr=1e-3, foreach=False)
        again = Accumulator(twin, plain, loss)
        again.window([x[:2]])
        for _ in range(windows - 1):
            again.window([x[:2], x[2:]])
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        wrong = error(moments, [state["exp_avg"] for state in plain.state.values()])
        assert wrong < 1e-12, wrong
        assert {state["step"].item() for state in optimizer.state.values()} == {float(windows)}
"""


KEEPS_NOTHING = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux refuses memory at an address-space limit")
@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_a_real_allocator_that_refuses_is_survived_in_every_phase(phase: str) -> None:
    """An address-space limit, so that the CPU allocator itself fails; the result is exact.

    Large blocks go back to the system when they are freed: what malloc keeps of them, or has in another
    thread's arena, would serve the next large batch under any limit.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REAL), phase],
        capture_output=True, text=True, timeout=110, check=False,
        env=os.environ | KEEPS_NOTHING,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
