"""Groups of ranks under gloo for tests: one new process imports torch once, and forks all groups from it."""

from __future__ import annotations

import datetime as dt
import importlib
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 100


def on_ranks(
    module: str, cases: dict[str, Any], sizes: tuple[int, ...], folder: Path, *, patience_s: int = PATIENCE_S
) -> dict[str, Any]:
    """What each case of `module.CASES` returned: by name, then by the size of the group, then by rank."""
    context = multiprocessing.get_context("spawn")
    parent = context.Process(target=_groups, args=(module, sizes, str(folder), patience_s))
    parent.start()
    parent.join(patience_s)
    if parent.exitcode is None:
        parent.kill()
        parent.join()
    assert parent.exitcode == 0, f"the ranks ended with {parent.exitcode}"
    parent.close()
    done = {
        size: [json.loads((folder / f"{size}-{rank}.json").read_text()) for rank in range(size)]
        for size in sizes
    }
    return {name: {size: [rank[name] for rank in done[size]] for size in sizes} for name in cases}


def _groups(module: str, sizes: tuple[int, ...], folder: str, patience_s: int) -> None:
    cases: dict[str, Callable[[int, int], Any]] = importlib.import_module(module).CASES
    context = multiprocessing.get_context("fork")
    for size in sizes:
        ranks = [context.Process(target=_rank, args=(cases, rank, size, folder)) for rank in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(patience_s)
        if any(rank.exitcode != 0 for rank in ranks):
            for rank in ranks:
                rank.kill()
            raise SystemExit(1)


def _rank(cases: dict[str, Callable[[int, int], Any]], rank: int, size: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store: Any = dist.FileStore(  # type: ignore[attr-defined]  # torch does not name it in __all__
        f"{folder}/store-{size}", size
    )
    dist.init_process_group(
        "gloo", rank=rank, world_size=size, store=store, timeout=dt.timedelta(seconds=PATIENCE_S)
    )
    try:
        done = {name: case(rank, size) for name, case in cases.items()}
        Path(folder, f"{size}-{rank}.json").write_text(json.dumps(done))
    finally:
        dist.destroy_process_group()
