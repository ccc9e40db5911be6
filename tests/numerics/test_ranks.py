"""Two processes under gloo, through the real step function: the formulas over ranks."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.numerics.probes import (
    RELATIVE,
    Probe,
    SmallGPT,
    gpt_loss,
    joined,
    large_batch_gradient,
    probe_loss,
    relative_error,
    rows,
    y,
)
from trainer_backend.engine import Accumulator, LossTerm

NAN = float("nan")
RANKS = 2


def on_both_ranks(case: str, folder: Path, **given: Any) -> list[dict[str, Any]]:
    """What each rank's `case` returned. The processes are spawned, as a launcher would start them."""
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_rank, args=(rank, case, str(folder), given), daemon=True)
        for rank in range(RANKS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
        assert worker.exitcode == 0, f"{case} on a rank ended with {worker.exitcode}"
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def _rank(rank: int, case: str, folder: str, given: dict[str, Any]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store: Any = dist.FileStore(  # type: ignore[attr-defined]  # torch does not name it in __all__
        f"{folder}/store", RANKS
    )
    dist.init_process_group(
        "gloo", rank=rank, world_size=RANKS, store=store, timeout=dt.timedelta(seconds=60)
    )
    try:
        run: Any = CASES[case]
        done = run(rank, **given)
        Path(folder, f"{rank}.json").write_text(json.dumps(done))
    finally:
        dist.destroy_process_group()


def _engine(model: nn.Module, loss: Any, **options: Any) -> Accumulator:
    options.setdefault("optimizer", torch.optim.SGD(model.parameters(), lr=1.0))
    optimizer = options.pop("optimizer")
    return Accumulator(model, optimizer, loss, process_group=dist.group.WORLD, **options)


def case_windows(
    rank: int, windows: list[list[list[float]]], wrapped: bool, **options: Any
) -> dict[str, Any]:
    """The probe's windows: `windows[w][rank]` is the list of that rank's micro-batches."""
    model = Probe()
    shell: nn.Module = model
    if wrapped:
        shell = nn.parallel.DistributedDataParallel(model)
        loss: Any = lambda m, batch: LossTerm(-(m.module.w * batch).sum(), batch.numel())  # noqa: E731
    else:
        loss = probe_loss
    accumulator = _engine(shell, loss, **options)
    told = []
    for window in windows:
        before = model.w.item()
        result = accumulator.window([y(*micro_batch) for micro_batch in window[rank]])  # type: ignore[misc]
        told.append([model.w.item() - before, result.weight, result.skipped, len(result.non_finite)])
    return {"told": told, "c": accumulator.state_dict()[1]["c"]}


def case_gpt(rank: int, valid: list[list[int]], ahead: bool, limit: int) -> dict[str, Any]:
    """Two denominators over ranks; rank 1 is out of memory above `limit` samples."""
    torch.manual_seed(0)
    model = SmallGPT(context=16)

    def loss(model: nn.Module, batch: Any) -> list[LossTerm]:
        if rank == 1 and len(batch.x) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return [gpt_loss(model, batch), LossTerm(model(batch.x)[:, 0].square().sum(), len(batch.x), "first")]

    def weights(batch: Any) -> dict[str, float]:
        return {"loss": int((batch.target != -1).sum()), "first": len(batch.x)}

    accumulator = _engine(model, loss, weights=weights if ahead else None)
    batches = [joined(rows([many, many], seed=10 * rank + i)) for i, many in enumerate(valid[rank])]
    gradients, result = accumulator.gradients(batches)
    everything = joined(
        joined(rows([many, many], seed=10 * other + i))
        for other in range(RANKS)
        for i, many in enumerate(valid[other])
    )

    def whole() -> list[LossTerm]:
        first = model(everything.x)[:, 0].square().sum()
        return [gpt_loss(model, everything), LossTerm(first, len(everything.x), "first")]

    right = large_batch_gradient(model, whole)
    return {
        "error": relative_error(gradients, right),
        "micro_batches": result.micro_batches,
        "ceiling": accumulator.micro_batch_ceiling,
    }


CASES = {"windows": case_windows, "gpt": case_gpt}


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_denominator_is_that_of_all_ranks(tmp_path: Path, wrapped: bool) -> None:
    """Tokens [3, 9] and [14, 2]: D = 28. Then unequal tails, a rank without weight, and one without a batch.

    Each update is the mean over all values of both ranks, on both ranks, with or without DDP around.
    """
    windows: list[list[list[list[float]]]] = [
        [[[1.0] * 3, [2.0] * 9], [[5.0] * 14, [-7.0] * 2]],
        [[[1.0], [2.0, 4.0], [3.0] * 5], [[10.0]]],
        [[[], []], [[6.0, 2.0]]],
        [[[4.0]], []],
        [[[]], [[], []]],
    ]
    done = on_both_ranks("windows", tmp_path, windows=windows, wrapped=wrapped)
    for index, window in enumerate(windows):
        values = [value for rank in window for micro_batch in rank for value in micro_batch]
        mean = sum(values) / len(values) if values else 0.0
        for rank in done:
            update, weight, skipped, _ = rank["told"][index]
            assert update == pytest.approx(mean, rel=RELATIVE)
            assert weight == len(values)
            assert skipped == ("" if values else "empty")
    assert done[0]["told"][0][1] == 28
    assert done[0]["c"] == done[1]["c"]


@pytest.mark.parametrize("policy", ["skip", "drop"])
def test_a_nan_on_one_rank_is_handled_the_same_on_all(tmp_path: Path, policy: str) -> None:
    """Skipped on both, or dropped and replayed on both; the next window is exact."""
    windows = [[[[2.0], [4.0]], [[NAN], [9.0]]], [[[1.0]], [[3.0]]]]
    done = on_both_ranks("windows", tmp_path, windows=windows, wrapped=False, non_finite=policy)
    expected = 5.0 if policy == "drop" else 0.0
    for rank in done:
        (update, _, skipped, told), (after, *_) = rank["told"]
        assert update == pytest.approx(expected, rel=RELATIVE)
        assert (skipped, told >= 1) == ("" if policy == "drop" else "non-finite", True)
        assert after == pytest.approx(2.0, rel=RELATIVE)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("limit", [99, 1])
def test_own_denominators_and_out_of_memory_are_agreed_on(tmp_path: Path, ahead: bool, limit: int) -> None:
    """Rank 1 runs out of memory: both replay in single samples, and the gradient is the large batch's."""
    done = on_both_ranks("gpt", tmp_path, valid=[[7, 2], [11, 4, 1]], ahead=ahead, limit=limit)
    split = 1 if limit == 99 else 2
    for rank, (found, many) in enumerate(zip(done, (2, 3), strict=True)):
        assert found["error"] <= RELATIVE
        assert found["micro_batches"] == many * split, rank
        assert found["ceiling"] == (None if limit == 99 else 1)
