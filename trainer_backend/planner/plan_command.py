"""`python -m trainer_backend plan RECIPE`: every micro-batch and N for an effective batch, measured.

Each size is probed in a process of its own (`--probe`), which alone imports torch. With --json stdout has
one object; with --stream one message a line, for a window. Exit codes: 0 a pair fits, 2 none or refused.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.planner.pairs import Machine, Plan, Probe, fastest, pairs_of, probe_all, sizes_for
from trainer_backend.planner.plan_messages import PlanFailed, PlanMessage, PlanProgress, ProbeDone
from trainer_backend.planner.plan_words import headline, how_measured, reasons, table
from trainer_backend.planner.variants import VariantPlan, compared, variants_of
from trainer_backend.recipe import Recipe, load_recipe, recipe_for_run, with_settings

PROBE_TIMEOUT_S: Final = 600.0


Tell: TypeAlias = Callable[[PlanMessage], None]
Measure: TypeAlias = Callable[[int], ProbeDone]
ProbeAt: TypeAlias = Callable[[str, int], ProbeDone]


def main(argv: Sequence[str]) -> int:
    """Plan as `argv` (behind the word plan) asks; gives the exit code."""
    options = _parser().parse_args(argv)
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what the user's own code prints
        try:
            if options.probe:
                _write(out, msgspec.json.encode(_probed(options)))
                return 0
            return _planned(options, out)
        except GradaccError as error:
            if options.stream:
                _write(out, msgspec.json.encode(PlanFailed(message=str(error))))
            else:
                sys.stderr.write(f"{error}\n")
            return error.exit_code
        except KeyboardInterrupt:
            return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_backend plan",
        description="Find the fastest micro-batch and N that fit for an effective batch.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, or a run's directory")
    parser.add_argument("--effective-batch", type=int, metavar="B", help="instead of the recipe's")
    parser.add_argument("--memory", type=float, metavar="GIB", help="what the peak may be")
    parser.add_argument(
        "--compare", action="store_true", help="also with activation checkpointing and the like changed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", type=int, metavar="SIZE", help=argparse.SUPPRESS)
    return parser


def _write(out: object, line: bytes) -> None:
    print(line.decode(), file=out, flush=True)  # type: ignore[call-overload]


def recipe_at(path: Path) -> Recipe:
    """The recipe in a file or in a run's directory."""
    path = path.expanduser()
    return load_recipe(path / "recipe.toml" if path.is_dir() else path)


def _planned(options: argparse.Namespace, out: object) -> int:
    recipe = recipe_at(Path(options.recipe))

    def tell(message: PlanMessage) -> None:
        if options.stream:
            _write(out, msgspec.json.encode(message))
        elif isinstance(message, PlanProgress) and not options.json:
            sys.stderr.write(f"Probe {message.number}: micro-batch {message.size:,} …\n")

    plan = make_plan(
        recipe, lambda size: probe_process(options.recipe, size), tell,
        effective_batch=options.effective_batch, memory_gib=options.memory,
    )  # fmt: skip
    others = compare_variants(recipe, plan, options, tell) if options.compare else []
    if options.stream:
        tell(plan)
    elif options.json:
        told = msgspec.to_builtins(plan) | ({"variants": msgspec.to_builtins(others)} if others else {})
        _write(out, msgspec.json.encode(told))
    else:
        lines = [headline(plan), *reasons(plan), "", *table(plan), ""]
        lines += [*compared(plan, others), ""] if others else []
        lines.append(how_measured(plan))
        _write(out, "\n".join(lines).encode())
    return 0 if plan.best is not None else 2


def compare_variants(
    recipe: Recipe, plan: Plan, options: argparse.Namespace, tell: Tell, probe: ProbeAt | None = None
) -> list[VariantPlan]:
    """The best pair of each variant, planned in the same way; `probe` measures a size of a recipe's file."""
    measure = probe or probe_process
    found = []
    with tempfile.TemporaryDirectory(prefix="gradacc-plan-") as folder:
        for number, variant in enumerate(variants_of(recipe.config, plan.machine.device)):
            path = Path(folder) / f"variant-{number}.toml"
            try:
                changed = with_settings(recipe, [variant.setting], variant.setting)
                path.write_text(recipe_for_run(changed).text, "utf-8")
                other = make_plan(
                    changed, functools.partial(measure, str(path)), tell,
                    effective_batch=options.effective_batch, memory_gib=options.memory,
                )  # fmt: skip
                found.append(VariantPlan(variant=variant, best=other.best))
            except GradaccError as error:  # it is offered, not asked for: the plan stands without it
                found.append(VariantPlan(variant=variant, best=None, fault=str(error).splitlines()[0]))
    return found


def make_plan(
    recipe: Recipe,
    measure: Measure,
    tell: Tell,
    *,
    effective_batch: int | None = None,
    memory_gib: float | None = None,
) -> Plan:
    """Measure and choose. Raises UsageError where no size can be tried."""
    began = time.monotonic()
    wanted = effective_batch or recipe.config.effective_batch
    if wanted < 1 or wanted % recipe.config.run.devices:
        message = f"An effective batch of {wanted} cannot be cut over {recipe.config.run.devices} devices."
        raise UsageError(message)
    wanted //= recipe.config.run.devices
    told: list[ProbeDone] = []

    def probe(size: int) -> Probe:
        tell(PlanProgress(size=size, number=len(told) + 1))
        told.append(measure(size))
        return told[-1].probe

    # The first probe tells how many samples there are; until then the smallest size is all that is tried.
    first = probe(1)
    if not first.fits:
        message = (
            f"Out of memory with a single sample ({told[0].longest or 'all are alike'}): no micro-batch "
            "fits. Use shorter samples, activation checkpointing, bf16, or a smaller model."
        )
        raise UsageError(message)
    sizes = sizes_for(wanted, told[0].samples)
    limit = int(memory_gib * 2**30) if memory_gib else told[0].machine.limit_bytes
    probes = probe_all(sizes, wanted, limit, lambda size: first if size == 1 else probe(size))
    pairs = pairs_of(sizes, wanted, probes, limit)
    config = recipe.config
    steps = config.run.max_optimizer_steps
    if steps is None and config.run.max_samples is not None:
        steps = -(-config.run.max_samples // wanted)
    elif steps is None and config.run.epochs is not None and told[0].samples is not None:
        steps = config.run.epochs * -(-told[0].samples // wanted)
    return Plan(
        machine=msgspec.structs.replace(told[0].machine, limit_bytes=limit), effective_batch=wanted,
        pairs=pairs, probes=tuple(probes), chosen=fastest(pairs), longest=told[0].longest,
        optimizer_steps=steps, duration_s=time.monotonic() - began,
    )  # fmt: skip


def probe_process(recipe: str, size: int) -> ProbeDone:
    """Measure a size in a process of its own. Raises GradaccError with what it said."""
    command = [sys.executable, "-P", "-m", "trainer_backend", "plan", recipe, "--probe", str(size)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        message = f"The probe of micro-batch {size} did not end within {PROBE_TIMEOUT_S:.0f} s."
        raise GradaccError(message) from None
    if done.returncode < 0:  # killed: the system's way to say that memory ran out
        return _killed(size)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        error = UsageError if done.returncode == UsageError.exit_code else GradaccError
        raise error(lines[-1])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=ProbeDone)


def _killed(size: int) -> ProbeDone:
    nothing = Machine(device="cpu", name="", total_bytes=0, other_bytes=0, limit_bytes=0)
    return ProbeDone(machine=nothing, probe=Probe(size=size, fits=False), longest="", samples=None)


def _probed(options: argparse.Namespace) -> ProbeDone:
    recipe = recipe_at(Path(options.recipe))
    from trainer_backend.trainer.devices import prepare_environment  # noqa: PLC0415 - torch, seconds

    prepare_environment(recipe.config.run)
    from trainer_backend.planner.probing import Prober, machine_of  # noqa: PLC0415 - likewise

    prober = Prober(recipe)
    machine = machine_of(prober.device)
    unit = "tokens" if recipe.config.kind in ("language-model", "causal-lm") else "numbers"
    longest = f"{prober.longest:,} {unit}" if prober.is_ragged else ""
    return ProbeDone(
        machine=machine, probe=prober.measure(options.probe), longest=longest, samples=prober.samples
    )
