"""Two processes under gloo, through the real step function: the formulas over ranks."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable
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
from trainer_backend.engine import Accumulator, LossTerm, NonFiniteError, auxiliary
from trainer_backend.errors import GradaccError

NAN = float("nan")
RANKS = 2


@pytest.fixture(scope="module")
def on_both_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each rank's case returned, by name.

    One pair of processes does them all, spawned as a launcher would start them: most of their time is
    imports.
    """
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_rank, args=(rank, str(folder)), daemon=True) for rank in range(RANKS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
        assert worker.exitcode == 0, f"a rank ended with {worker.exitcode}"
        worker.close()
    done = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: [rank[name] for rank in done] for name in CASES}


def _rank(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store: Any = dist.FileStore(  # type: ignore[attr-defined]  # torch does not name it in __all__
        f"{folder}/store", RANKS
    )
    dist.init_process_group(
        "gloo", rank=rank, world_size=RANKS, store=store, timeout=dt.timedelta(seconds=60)
    )
    try:
        done = {name: case(rank) for name, case in CASES.items()}
        Path(folder, f"{rank}.json").write_text(json.dumps(done))
    finally:
        dist.destroy_process_group()


def _engine(model: nn.Module, loss: Any, **options: Any) -> Accumulator:
    options.setdefault("optimizer", torch.optim.SGD(model.parameters(), lr=1.0))
    optimizer = options.pop("optimizer")
    return Accumulator(model, optimizer, loss, process_group=dist.group.WORLD, **options)


def case_windows(
    rank: int, windows: list[list[list[list[float]]]], wrapped: bool, **options: Any
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
        try:
            result = accumulator.window([y(*micro_batch) for micro_batch in window[rank]])
        except NonFiniteError as error:
            told.append([model.w.item() - before, accumulator.samples_seen, error.code, len(error.seen)])
            continue
        told.append([model.w.item() - before, result.weight, result.skipped, len(result.non_finite)])
    return {"told": told, "c": accumulator.state_dict()[1]["c"]}


def case_wrapped_alone(rank: int) -> dict[str, Any]:
    """A wrapped model without a process group of its own, and samples that ranks count together."""
    model = Probe()
    shell = nn.parallel.DistributedDataParallel(model)
    totals: list[int] = []
    loss: Any = lambda m, batch: LossTerm(-(m.module.w * batch).sum(), batch.numel())  # noqa: E731
    accumulator = Accumulator(shell, torch.optim.SGD(model.parameters(), lr=1.0), loss)
    result = accumulator.window(
        [y(*([1.0] * (1 + 2 * rank)))], before_step=lambda seen: totals.append(seen.samples_seen)
    )
    return {"samples": [result.samples, accumulator.samples_seen, *totals], "weight": result.weight}


def case_unequal(rank: int) -> str:
    """Ranks that begin with other weights."""
    model = Probe()
    with torch.no_grad():
        model.w.fill_(float(rank))
    try:
        _engine(model, probe_loss)
    except GradaccError as error:
        return str(error)
    return ""


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


def case_policies(rank: int, windows: list[list[list[list[float]]]], policies: list[str]) -> dict[str, Any]:
    """The same windows under each policy for what is not finite."""
    return {policy: case_windows(rank, windows, wrapped=False, non_finite=policy) for policy in policies}


def case_auxiliary(rank: int, all_seeds: list[list[list[int]]]) -> list[dict[str, Any]]:
    """Windows of different numbers of micro-batches, alike and not."""
    return [_auxiliary(rank, seeds) for seeds in all_seeds]


def _auxiliary(rank: int, seeds: list[list[int]]) -> dict[str, Any]:
    """A load-balancing loss; a micro-batch's rows are drawn from its seed: `seeds[rank]` are that rank's."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()

    def drawn(seed: int) -> torch.Tensor:
        return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def loss(model: nn.Module, x: torch.Tensor) -> list[LossTerm]:
        out = model(x)
        main = LossTerm(out.square().sum(), len(x))
        return [main, auxiliary(out.softmax(-1).mean(0).square().sum(), main, "balance")]

    gradients, result = _engine(model, loss).gradients([drawn(seed) for seed in seeds[rank]])
    everything = [drawn(seed) for of_rank in seeds for seed in of_rank]
    parts = [loss(model, x) for x in everything]
    right = large_batch_gradient(
        model,
        lambda: [
            LossTerm(torch.stack([part[i].total for part in parts]).sum(), 6 * len(parts), str(i))
            for i in (0, 1)
        ],
    )
    alone = loss(model, drawn(seeds[0][0]))
    return {
        "error": relative_error(gradients, right),
        "from_alone": relative_error(gradients, large_batch_gradient(model, lambda: alone)),
        "balance": result.terms["balance"],
        "balance_alone": float(alone[1].total.detach()) / 6,
    }


WINDOWS: list[list[list[list[float]]]] = [
    [[[1.0] * 3, [2.0] * 9], [[5.0] * 14, [-7.0] * 2]],
    [[[1.0] * 5, [-3.0]], [[4.0] * 4, [2.0] * 8, [6.0] * 3]],
    [[[7.0] * 2, [1.0] * 2], [[3.0] * 100, [50.0]]],
    [[[1.0], [2.0, 4.0], [3.0] * 5], [[10.0]]],
    [[[], []], [[6.0, 2.0]]],
    [[[4.0]], []],
    [[[]], [[], []]],
]
"""Each rank's micro-batches of each window."""
NAN_WINDOWS = [
    ([[[2.0], [4.0]], [[NAN], [9.0]]], 5.0),
    ([[[NAN, 1.0], [3.0]], [[5.0] * 3]], 4.5),
    ([[[1.0], [2.0], [NAN]], [[7.0, NAN], [4.0], [9.0]]], 4.0),
    ([[[NAN]], [[8.0], [-2.0]]], 3.0),
]
"""Micro-batches of each rank, and the mean of all values but those of micro-batches with a NaN."""
WITH_NAN = [window for bad, _ in NAN_WINDOWS for window in (bad, [[[1.0]], [[3.0]]])]
REASONS = {"skip": "non-finite", "drop": "", "halt": "non-finite-halt"}
SEEDS = [[[3], [3]], [[5, 5, 5], [5, 5]], [[7, 7], [7]], [[1, 2], [3, 4, 5]]]
VALID = [[7, 2], [11, 4, 1]]
OWN = {
    f"own-{limit}-{ahead}": functools.partial(case_gpt, valid=VALID, ahead=ahead, limit=limit)
    for limit in (99, 1)
    for ahead in (True, False)
}
CASES: dict[str, Callable[[int], Any]] = {
    "plain": functools.partial(case_windows, windows=WINDOWS, wrapped=False),
    "wrapped": functools.partial(case_windows, windows=WINDOWS, wrapped=True),
    "policies": functools.partial(case_policies, windows=WITH_NAN, policies=list(REASONS)),
    "auxiliary": functools.partial(case_auxiliary, all_seeds=SEEDS),
    "wrapped_alone": case_wrapped_alone,
    "unequal": case_unequal,
    **OWN,
}


@pytest.mark.parametrize("case", ["plain", "wrapped"])
def test_the_denominator_is_that_of_all_ranks(on_both_ranks: dict[str, list[Any]], case: str) -> None:
    """Tokens [3, 9] and [14, 2]: D = 28; then 21, 105, unequal tails, ranks without weight or batch.

    Each update is the mean over all values of both ranks, on both ranks, with or without DDP around.
    """
    done = on_both_ranks[case]
    for index, window in enumerate(WINDOWS):
        values = [value for rank in window for micro_batch in rank for value in micro_batch]
        mean = sum(values) / len(values) if values else 0.0
        for rank in done:
            update, weight, skipped, _ = rank["told"][index]
            assert update == pytest.approx(mean, rel=RELATIVE)
            assert weight == len(values)
            assert skipped == ("" if values else "empty")
    assert [weight for _, weight, _, _ in done[0]["told"]][:3] == [28, 21, 105]
    assert done[0]["c"] == done[1]["c"]


def test_a_nan_on_one_rank_is_handled_the_same_on_all(on_both_ranks: dict[str, list[Any]]) -> None:
    """Skipped on both, dropped and replayed on both, or halted on both; the next window is exact."""
    done = on_both_ranks["policies"]
    for rank, (policy, wanted) in itertools.product(done, REASONS.items()):
        for index, (_, mean) in enumerate(NAN_WINDOWS):
            bad, after = rank[policy]["told"][2 * index : 2 * index + 2]
            update, seen, reason, told = bad
            assert update == pytest.approx(mean if policy == "drop" else 0.0, rel=RELATIVE)
            assert (reason, told >= 1) == (wanted, True)
            if policy == "halt":
                assert seen == 2 * index  # of both ranks; nothing of the window itself was consumed
            assert after[0] == pytest.approx(2.0, rel=RELATIVE)


def test_an_auxiliary_loss_depends_neither_on_n_nor_on_how_many_ranks_there_are(
    on_both_ranks: dict[str, list[Any]],
) -> None:
    """Identical rows everywhere: loss and gradient are one micro-batch's; else the mean over all of them."""
    for rank in on_both_ranks["auxiliary"]:
        for found, alike in zip(rank, (True, True, True, False), strict=True):
            assert found["error"] <= RELATIVE
            assert (found["from_alone"] <= RELATIVE) == alike
            assert (found["balance"] == pytest.approx(found["balance_alone"], rel=RELATIVE)) == alike


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("limit", [99, 1])
def test_own_denominators_and_out_of_memory_are_agreed_on(
    on_both_ranks: dict[str, list[Any]], ahead: bool, limit: int
) -> None:
    """Rank 1 runs out of memory: both replay in single samples, and the gradient is the large batch's."""
    done = on_both_ranks[f"own-{limit}-{ahead}"]
    split = 1 if limit == 99 else 2
    for found in done:
        assert found["error"] <= RELATIVE
        assert found["micro_batches"] == 5 * split
        assert found["ceiling"] == (None if limit == 99 else 1)


def test_a_wrapped_model_brings_its_own_ranks_and_samples_are_counted_over_all(
    on_both_ranks: dict[str, list[Any]],
) -> None:
    """Without a process group its gradients were never summed; the sample clock was one rank's."""
    assert [found["samples"] for found in on_both_ranks["wrapped_alone"]] == [[4, 4, 4]] * RANKS
    assert [found["weight"] for found in on_both_ranks["wrapped_alone"]] == [4.0] * RANKS


def test_ranks_that_begin_with_other_weights_are_refused(on_both_ranks: dict[str, list[Any]]) -> None:
    """They would train apart for ever."""
    for found in on_both_ranks["unequal"]:
        assert found.startswith("w differs between the ranks at the start")
