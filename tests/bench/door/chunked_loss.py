"""The loss in chunks beside that of all logits at once: 1,024 tokens, width 256, fp32, the head trained.

chunked_loss_rel_error_fp64          the worst of total, hidden states' and head's gradient, over plain,
                                     soft-capped, scaled and smoothed heads
chunked_loss_peak_ratio_vocab_128k   peak resident memory above the weights, of forward and backward, in
                                     processes of their own; vocabulary 131,072
chunked_loss_peak_mb, full_loss_peak_mb
chunked_loss_time_ratio              median over rounds of forward and backward, one after the other
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from tests.bench.figures import peak_bytes
from trainer_backend.tasks.causal_lm.chunked import CHUNK_ELEMENTS, LogitShape, chunked_cross_entropy

TOKENS: Final = 1024
WIDTH: Final = 256
VOCABULARY: Final = 131_072
ROUNDS: Final = 7


def full_cross_entropy(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor,
    shape: LogitShape,
) -> torch.Tensor:
    """The definition: all logits, then torch's own cross-entropy."""
    logits = F.linear(hidden, head)
    if shape.scale != 1:
        logits = logits * shape.scale
    if shape.softcap is not None:
        logits = shape.softcap * torch.tanh(logits / shape.softcap)
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=shape.label_smoothing)
    return (losses * weights).sum()


def in_chunks(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor,
    shape: LogitShape,
) -> torch.Tensor:
    """The same, without a bias."""
    return chunked_cross_entropy(hidden, head, None, targets, weights, shape)


LOSSES: Final = {"chunked": in_chunks, "full": full_cross_entropy}


def operands(tokens: int, vocabulary: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Hidden states, head, targets and weights."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, dtype=dtype, requires_grad=True)
    head = torch.nn.Parameter(torch.randn(vocabulary, WIDTH, dtype=dtype) / 16)
    return hidden, head, torch.randint(0, vocabulary, (tokens,)), torch.rand(tokens, dtype=dtype)


def backward(loss: str, given: tuple[torch.Tensor, ...], shape: LogitShape) -> list[torch.Tensor]:
    """Total and gradients."""
    hidden, head, targets, weights = given
    for leaf in (hidden, head):
        leaf.grad = None
    total = LOSSES[loss](hidden, head, targets, weights, shape)
    total.backward()  # type: ignore[no-untyped-call]
    gradients = [leaf.grad for leaf in (hidden, head) if leaf.grad is not None]
    assert len(gradients) == 2
    return [total.detach(), *gradients]


def error_fp64() -> float:
    """The worst relative L2 over shapes."""
    CHUNK_ELEMENTS["cpu"] = 2**20  # several chunks, the last one short
    given = operands(1000, 5000, torch.float64)
    worst = 0.0
    for shape in (
        LogitShape(),
        LogitShape(softcap=3.0),
        LogitShape(scale=0.25),
        LogitShape(label_smoothing=0.1),
        LogitShape(scale=4.0, softcap=2.0, label_smoothing=0.2),
    ):
        pairs = zip(backward("chunked", given, shape), backward("full", given, shape), strict=True)
        worst = max(worst, *(float((ours - right).norm() / right.norm()) for ours, right in pairs))
    return worst


def peak_above_weights(loss: str) -> int:
    """Bytes, of this process."""
    given = operands(TOKENS, VOCABULARY, torch.float32)
    backward(loss, operands(8, 64, torch.float32), LogitShape())  # what the libraries take once
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak starts again from here
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    assert resident is not None
    backward(loss, given, LogitShape())
    return peak_bytes() - int(resident[1]) * 1024


def peak_in_own_process(loss: str) -> int:
    """The same, in a fresh one."""
    command = [sys.executable, "-m", "tests.bench.door.chunked_loss", loss]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def time_ratio() -> float:
    """Chunked over full; each round times both, in turns of who is first."""
    given = operands(TOKENS, VOCABULARY, torch.float32)
    ratios = []
    for turn in range(ROUNDS + 1):
        seconds = {}
        for loss in sorted(LOSSES, reverse=bool(turn % 2)):
            begun = time.perf_counter()
            backward(loss, given, LogitShape())
            seconds[loss] = time.perf_counter() - begun
        ratios.append(seconds["chunked"] / seconds["full"])
    return statistics.median(ratios[1:])  # the first round warms up


def main() -> None:
    """Measure all, or (with a loss named) the peak of this process."""
    if len(sys.argv) > 1:
        print(peak_above_weights(sys.argv[1]))
        return
    chunked, full = (peak_in_own_process(loss) for loss in ("chunked", "full"))
    ratio = time_ratio()  # before the size of chunks is made small
    result = {
        "chunked_loss_rel_error_fp64": error_fp64(),
        "chunked_loss_peak_ratio_vocab_128k": round(chunked / full, 3),
        "chunked_loss_peak_mb": round(chunked / 1e6, 1),
        "full_loss_peak_mb": round(full / 1e6, 1),
        "chunked_loss_time_ratio": round(ratio, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
