"""A plan in sentences: which pair, why, and what accumulation buys. Read by both sides."""

from __future__ import annotations

from typing import Final

from trainer_backend.planner.pairs import Pair, Plan, knee

GIB: Final = 2**30


def gib(size: float) -> str:
    """Bytes in GiB, three figures."""
    return f"{size / GIB:.3g} GiB"


def duration(seconds: float) -> str:
    """0.042 s, 12.1 s, 14 min, 2 h 11 min."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def headline(plan: Plan) -> str:
    """Which pair was chosen."""
    best = plan.best
    if best is None:
        return f"No micro-batch fits into {gib(plan.machine.limit_bytes)}."
    return (
        f"Micro-batch {best.micro_batch_size:,} x N {best.accumulation_steps:,} is the fastest pair that "
        f"fits for an effective batch of {plan.effective_batch:,}."
    )


def reasons(plan: Plan) -> list[str]:
    """Why that one: its neighbours, the knee, and what N buys."""
    best = plan.best
    if best is None:
        return [
            "Use shorter samples, activation checkpointing, an optimizer with less state, or a smaller model."
        ]
    found = [*_neighbours(plan, best)]
    bend = knee(plan.pairs)
    if bend is not None and bend.micro_batch_size < best.micro_batch_size:
        found.append(
            f"From micro-batch {bend.micro_batch_size:,} on a larger one gains 5 % or less, for more memory."
        )
    found.append(what_n_buys(plan))
    return found


def _neighbours(plan: Plan, best: Pair) -> list[str]:
    assert plan.chosen is not None
    found = []
    if plan.chosen > 0:
        less = plan.pairs[plan.chosen - 1]
        slower = 100 * (less.step_s / best.step_s - 1)
        freed = gib(best.peak_bytes - less.peak_bytes)
        how = f"is {slower:.0f} % slower" if slower >= 1 else "is as fast"
        found.append(f"Micro-batch {less.micro_batch_size:,} {how} and takes {freed} less.")
    if plan.chosen + 1 < len(plan.pairs):
        more = plan.pairs[plan.chosen + 1]
        if not more.fits:
            over = more.peak_bytes - plan.machine.limit_bytes
            lack = f"{gib(over)} more than there is" if over > 0 else "more memory than there is"
            found.append(f"Micro-batch {more.micro_batch_size:,} would need {lack}.")
        else:
            found.append(f"Micro-batch {more.micro_batch_size:,} is not faster.")
    return found


def what_n_buys(plan: Plan) -> str:
    """The plain word: N buys a larger batch, not speed; with the measured ratio."""
    best, ratio = plan.best, plan.speed_up
    if best is None or ratio is None or best.accumulation_steps == 1:
        return "With N = 1 nothing is accumulated."
    gain = 100 * (ratio - 1)
    if gain < 1:
        return (
            f"Accumulation gives the batch of {plan.effective_batch:,}; it does not make training faster: "
            f"N = {best.accumulation_steps:,} has the throughput of N = 1."
        )
    return (
        f"Accumulation gives the batch of {plan.effective_batch:,}, not speed: N = "
        f"{best.accumulation_steps:,} has {gain:.0f} % more throughput than N = 1, since the optimizer steps "
        "less often."
    )


def how_measured(plan: Plan) -> str:
    """By which probes."""
    sizes = ", ".join(f"{probe.size:,}" for probe in sorted(plan.probes, key=lambda probe: probe.size))
    longest = f" with the longest samples ({plan.longest})" if plan.longest else ""
    return (
        f"{len(plan.probes)} probes (micro-batch {sizes}){longest}, each in a process of its own, in "
        f"{plan.duration_s:.0f} s. Energy was not measured."
    )


def table(plan: Plan) -> list[str]:
    """The pairs as lines of a terminal."""
    lines = [f"{'micro-batch':>11} {'N':>6} {'peak':>10} {'samples/s':>10} {'s per step':>11}"]
    for place, pair in enumerate(plan.pairs):
        mark = "fastest" if place == plan.chosen else "fits" if pair.fits else "too large"
        speed = f"{pair.samples_per_s:>10.4g} {pair.step_s:>11.4g}" if pair.fits else f"{'-':>10} {'-':>11}"
        lines.append(
            f"{pair.micro_batch_size:>11,} {pair.accumulation_steps:>6,} {gib(pair.peak_bytes):>10} {speed}"
            f"  {mark}{' (measured)' if pair.is_measured else ''}"
        )
    return lines
