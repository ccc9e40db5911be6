"""A plan with one setting changed, from probes of a machine that is made up."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from trainer_backend.config import RunConfig
from trainer_backend.errors import GradaccError
from trainer_backend.planner.pairs import Lines, Machine, Probe
from trainer_backend.planner.plan_command import compare_variants, make_plan
from trainer_backend.planner.plan_messages import ProbeDone
from trainer_backend.planner.variants import compared, variants_of
from trainer_backend.recipe import load_recipe

GIB = 2**30
RECIPE = """
[run]
max_optimizer_steps = 4
[task]
kind = "language-model"
[accumulation]
micro_batch_size = 1
effective_batch_size = 32
"""
OPTIONS = argparse.Namespace(effective_batch=None, memory=None)


def machine_probe(path: str, size: int) -> ProbeDone:
    """A sample takes 1 GiB of 10, or a quarter of it and half as long again under checkpointing."""
    checkpointing = load_recipe(Path(path)).config.task.activation_checkpointing  # type: ignore[attr-defined]
    each, slower = (GIB // 4, 1.5) if checkpointing else (GIB, 1.0)
    machine = Machine(device="cpu", name="", total_bytes=16 * GIB, other_bytes=0, limit_bytes=10 * GIB)
    probe = Probe(
        size=size, fits=size * each < 10 * GIB, idle_bytes=GIB, peak_bytes=GIB + size * each,
        micro_s=slower * (0.01 + 0.01 * size), step_s=0.01,
    )  # fmt: skip
    return ProbeDone(machine=machine, probe=probe, longest="", samples=1000)


def test_a_variant_is_planned_as_the_recipe_is_and_told_beside_it(tmp_path: Path) -> None:
    """Checkpointing makes room for micro-batches of 32, and is slower all the same."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, "utf-8")
    recipe = load_recipe(path)
    plan = make_plan(recipe, lambda size: machine_probe(str(path), size), lambda _: None)
    assert plan.best is not None
    assert plan.best.micro_batch_size == 8
    (other,) = compare_variants(recipe, plan, OPTIONS, lambda _: None, machine_probe)
    assert other.best is not None
    assert other.best.micro_batch_size == 32
    lines = compared(plan, [other])
    assert "8 x 4" in lines[1]
    assert "32 x 1" in lines[2]
    assert lines[2].endswith("% slower")


def test_a_variant_that_cannot_be_measured_says_why_and_the_plan_stands(tmp_path: Path) -> None:
    """Such as a model that cannot be checkpointed."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, "utf-8")
    recipe = load_recipe(path)
    plan = make_plan(recipe, lambda size: machine_probe(str(path), size), lambda _: None)

    def refuse(_path: str, _size: int) -> ProbeDone:
        raise GradaccError("This model has no blocks.")

    found = compare_variants(recipe, plan, OPTIONS, lambda _: None, refuse)
    assert [one.fault for one in found] == ["This model has no blocks."]
    assert compared(plan, found)[-1].endswith("This model has no blocks.")


@pytest.mark.parametrize(("device", "many"), [("cpu", 1), ("cuda", 2)])
def test_8_bit_states_are_offered_where_they_exist(device: str, many: int) -> None:
    """On a GPU."""
    assert len(variants_of(RunConfig(), device)) == many


def test_a_size_that_small_ones_make_look_slow_is_tried_by_the_line_not_in_proportion(tmp_path: Path) -> None:
    """Where a call costs more than its samples, 64 samples take little longer than one."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("= 32", "= 64"), "utf-8")

    def slow_call(size: int) -> ProbeDone:
        done = machine_probe(str(path), 1)
        probe = Probe(
            size=size,
            fits=True,
            idle_bytes=GIB,
            peak_bytes=GIB + size,
            micro_s=0.2 + 1e-3 * size,
            step_s=0.01,
        )
        return ProbeDone(machine=done.machine, probe=probe, longest="", samples=1000)

    plan = make_plan(load_recipe(path), slow_call, lambda _: None)
    assert plan.best is not None
    assert (plan.best.micro_batch_size, plan.best.is_measured) == (64, True)
    assert Lines(plan.probes).micro_s(64) == pytest.approx(0.264)
