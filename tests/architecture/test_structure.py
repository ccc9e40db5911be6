"""The source keeps its shape: what `python -m tests.bench.structure` counts stays counted."""

from __future__ import annotations

from tests.bench import structure


def test_one_fold_one_enumeration_no_cycles_and_one_meaning_a_name() -> None:
    """Each that comes back is named by the benchmark, and here."""
    found, _ = structure.measure()
    assert found.folds_of_facts == ["trainer_backend.run_facts"]
    assert found.state_enums == ["trainer_backend.run_facts.RunState"]
    assert found.import_cycles == []
    assert found.data_modules_outside_contract == []
    assert found.public_class_names_twice == []
    assert len(found.module_stems_twice) <= 6
