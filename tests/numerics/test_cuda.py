"""What only a card can show, for whoever has one: `pytest -m gpu tests/numerics/test_cuda.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.numerics.probes import RELATIVE, SmallGPT, Tokens, gpt_loss, joined, relative_error, rows
from trainer_backend.engine import Accumulator, LossTerm, WindowResult, make_optimizer
from trainer_backend.protocol import OutOfMemoryRecovered

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
NAN = float("nan")


def wide_loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
    """Mean square."""
    return LossTerm(model(x).square().sum(), len(x))


class Hungry(torch.autograd.Function):
    """Passes a tensor on; its backward needs as many bytes a sample as it is told."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bytes_a_sample: int) -> torch.Tensor:
        """`x`."""
        ctx.needed = len(x) * bytes_a_sample
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The gradient, after memory was taken and given back."""
        torch.empty(ctx.needed, dtype=torch.uint8, device=gradients[0].device)
        return gradients[0], None


@contextlib.contextmanager
def room(extra_bytes: int) -> Iterator[None]:
    """So much more memory than is allocated now, for this process."""
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + extra_bytes) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def windows_of(
    device: torch.device, *, deferred: bool, valid: list[list[int]], **options: Any
) -> tuple[list[WindowResult], list[torch.Tensor]]:
    """The small GPT under fused AdamW: results, complete, and the weights at the end."""
    torch.manual_seed(0)
    model = SmallGPT(context=16).to(device)
    optimizer = make_optimizer("adamw", model.parameters(), learning_rate=0.01)
    accumulator = Accumulator(model, optimizer, gpt_loss, deferred=deferred, **options)
    results = [accumulator.window(rows(some, seed=step)) for step, some in enumerate(valid)]
    accumulator.flush()
    return results, [parameter.detach().cpu() for parameter in model.parameters()]


def gradient_errors(device: torch.device, precision: str) -> tuple[float, float]:
    """Of N micro-batches and of one large batch in `precision`, both against fp64."""
    batches: list[Tokens] = [joined(rows([4, 9, 2], seed=i)) for i in range(4)]
    found = []
    for given, chosen in ((batches, "fp64"), (batches, precision), ([joined(batches)], precision)):
        torch.manual_seed(0)
        model = SmallGPT(context=16).to(device)
        model = model if chosen == "fp64" else model.float()
        accumulator = Accumulator(
            model, make_optimizer("sgd", model.parameters(), learning_rate=0.0), gpt_loss,
            precision="fp32" if chosen == "fp64" else chosen,  # type: ignore[arg-type]
        )  # fmt: skip
        gradients, _ = accumulator.gradients(given)
        found.append({name: gradient.double().cpu() for name, gradient in gradients.items()})
    right, folded, one = found
    return relative_error(folded, right), relative_error(one, right)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_real_out_of_memory_is_survived(phase: str) -> None:
    """64 MiB a sample, room for a few: smaller micro-batches, and the gradient of all samples."""
    bytes_a_sample = 64 * 2**20
    torch.manual_seed(0)
    model = nn.Linear(8, 8).double().to(CUDA)
    x = torch.randn(16, 8).double()

    def loss(model: nn.Module, x: torch.Tensor) -> LossTerm:
        out = model(x)
        if phase == "forward":
            torch.empty(len(x) * bytes_a_sample, dtype=torch.uint8, device=CUDA)
        else:
            out = Hungry.apply(out, bytes_a_sample)
        return LossTerm(out.square().sum(), len(x))

    facts: list[Any] = []
    accumulator = Accumulator(model, torch.optim.SGD(model.parameters(), 0.0), loss, on_fact=facts.append)
    accumulator.window([x[:1]])
    with room(5 * bytes_a_sample):
        gradients, result = accumulator.gradients([x[:8], x[8:]])
    right = torch.autograd.grad(model(x.to(CUDA)).square().sum() / 16, list(model.parameters()))
    wanted = dict(zip(gradients, right, strict=True))
    assert relative_error(gradients, wanted) <= RELATIVE
    assert (result.samples, result.micro_batch_size) == (16, 4)
    assert [fact.phase for fact in facts if isinstance(fact, OutOfMemoryRecovered)] == [phase]


def test_a_real_out_of_memory_in_the_step_is_undone_and_made_again() -> None:
    """foreach AdamW needs a copy of all its tensors at once, the loop after it one at a time."""
    ends = []
    for limited in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).to(CUDA)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
        accumulator = Accumulator(model, optimizer, wide_loss, snapshot_step=True)
        x = torch.randn(2, 2048)
        accumulator.window([x])
        state_bytes = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
        gradients_bytes = state_bytes // 3
        # The copy of parameters and state and the gradients fit; foreach's temporaries do not.
        space = room(state_bytes + gradients_bytes + 96 * 2**20) if limited else contextlib.nullcontext()
        with space:
            result = accumulator.window([x])
        assert [fact.phase for fact in result.out_of_memory] == ["optimizer"] * limited
        ends.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-7) for one, other in zip(*ends, strict=True))


def test_numbers_that_come_late_are_those_that_are_waited_for() -> None:
    """Losses, norms and weights of the same windows, one of them empty."""
    valid = [[4, 9], [3], [0, 0], [16, 2, 7]]
    (now, weights), (later, others) = (
        windows_of(CUDA, deferred=deferred, valid=valid) for deferred in (False, True)
    )
    for one, other in zip(now, later, strict=True):
        assert (one.skipped, one.updates) == (other.skipped, other.updates)
        assert [one.loss, one.gradient_norm] == pytest.approx([other.loss, other.gradient_norm], rel=1e-10)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-13) for a, b in zip(weights, others, strict=True))


def test_a_window_waits_for_nothing_and_a_skip_neither() -> None:
    """torch raises at each wait for the device; the second window is not finite."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8).to(CUDA)
    optimizer = make_optimizer("adamw", model.parameters(), learning_rate=0.1)
    accumulator = Accumulator(model, optimizer, wide_loss, max_grad_norm=1.0, gradient_norm_every=1)
    good = [torch.randn(4, 8).pin_memory() for _ in range(3)]
    bad = torch.full((4, 8), NAN).pin_memory()
    accumulator.window(good)
    torch.cuda.synchronize()  # what the window after it opens is there
    before = [parameter.detach().clone() for parameter in model.parameters()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = accumulator.window([good[0], bad])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    accumulator.flush()
    assert result.skipped == "non-finite"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(("precision", "limit"), [("bf16", 2e-2), ("fp16", 2e-2)])
def test_half_precision_errs_no_more_than_its_own_large_batch(precision: str, limit: float) -> None:
    """max(limit, 1.5 x error of the one-fold), as a certificate has it."""
    folded, one_fold = gradient_errors(CUDA, precision)
    assert folded <= max(limit, 1.5 * one_fold)


def test_nvml_reads_the_card_that_torch_uses() -> None:
    """Matched by UUID, whatever the order of the indices."""
    from trainer_backend.readings.nvml import Nvml

    uuid = str(torch.cuda.get_device_properties(CUDA).uuid)
    nvml = Nvml()
    try:
        handle = nvml.handle(uuid)
        found = nvml.api.nvmlDeviceGetUUID(handle)
        total = nvml.api.nvmlDeviceGetMemoryInfo(handle).total
    finally:
        nvml.close()
    assert found.removeprefix("GPU-") == uuid.removeprefix("GPU-")
    assert total >= torch.cuda.get_device_properties(CUDA).total_memory
