"""What the benchmark of the source's structure counts, on small trees that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import structure
from tests.bench.structure import Module, read_modules


def tree(root: Path, **files: str) -> dict[str, Module]:
    """Modules of a tree: `gradacc_gui__run__asks="..."`, or with strokes, is gradacc_gui/run/asks.py."""
    for name, text in files.items():
        path = root.joinpath(*name.split("/" if "/" in name else "__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        for folder in path.relative_to(root).parents[:-1]:
            (root / folder / "__init__.py").touch()
    return read_modules(root)


MATCHES_TWO = """
match fact:
    case RunStarted(step=step) | protocol.RolledBack():
        pass
"""
ASKS_FOR_TWO = "isinstance(fact, AccumulationChanged | protocol.SettingChanged)"


def test_who_tells_two_folded_facts_apart_folds_them(tmp_path: Path) -> None:
    """By `case` or by `isinstance`; one fact, or two that are made, make no fold."""
    modules = tree(
        tmp_path,
        gradacc_gui__cases=MATCHES_TWO,
        gradacc_gui__asks=ASKS_FOR_TWO,
        gradacc_gui__pairs="isinstance(fact, (RunStarted, RolledBack))",
        gradacc_gui__one="isinstance(fact, RunStarted)",
        gradacc_gui__makes="put(RunStarted())\nput(RolledBack())",
        gradacc_gui__others="isinstance(fact, Paused | Resumed)",
    )
    assert structure.folds(modules) == ["gradacc_gui.asks", "gradacc_gui.cases", "gradacc_gui.pairs"]


def test_the_one_fold_counts_once_and_those_that_word_facts_do_not(tmp_path: Path) -> None:
    """Of the rest none may be; so the figure is one where all is well."""
    modules = tree(tmp_path, trainer_backend__run_facts=MATCHES_TWO, gradacc_gui__words=MATCHES_TWO)
    assert structure.folds(modules) == ["trainer_backend.run_facts"]
    assert structure.folds(modules, excepted=()) == ["trainer_backend.run_facts", "gradacc_gui.words"]


def test_what_is_excepted_is_there_and_would_be_counted() -> None:
    """A module that has gone, or folds no more, is struck off the list."""
    modules = read_modules(structure.ROOT)
    excepted = {*structure.EMITTERS, *structure.PRESENTERS}
    assert excepted <= set(modules)
    assert excepted <= set(structure.folds(modules, excepted=()))


def test_an_enumeration_of_a_runs_states_is_found_by_its_members(tmp_path: Path) -> None:
    """As a class, and as a Literal; colours and two states are none."""
    modules = tree(
        tmp_path,
        gradacc_gui__a="class State(enum.StrEnum):\n    RUNNING = 'r'\n    PAUSED = 'p'\n    FAILED = 'f'",
        gradacc_gui__b="Name = Literal['running', 'paused', 'stopped', 'gone']",
        gradacc_gui__c="class End(Enum):\n    FINISHED = 1\n    FAILED = 2\n    RED = 3",
        gradacc_gui__d="class State:\n    RUNNING = PAUSED = FAILED = 1",
        gradacc_gui__e="Ends: TypeAlias = Literal['finished', 'stopped', 'failed']",
    )
    assert structure.state_enums(modules) == [
        "gradacc_gui.a.State", "gradacc_gui.b.Name", "gradacc_gui.e.Ends",
    ]  # fmt: skip


def test_an_import_is_seen_in_each_of_its_ways(tmp_path: Path) -> None:
    """Absolute, relative, of a name, of a module, within a function."""
    modules = tree(
        tmp_path,
        gradacc_gui__run__a="""
import gradacc_gui.words
from gradacc_gui.run.b import name
from gradacc_gui.run import c, Name
from . import d
from ..store import e
def later():
    import torch.nn
""",
        gradacc_gui__run__b="", gradacc_gui__run__c="", gradacc_gui__run__d="",
        gradacc_gui__store__e="", gradacc_gui__words="",
    )  # fmt: skip
    assert structure.imported_by(modules["gradacc_gui.run.a"], modules) == {
        "gradacc_gui.words", "gradacc_gui.run.b", "gradacc_gui.run.c", "gradacc_gui.run",
        "gradacc_gui.run.d", "gradacc_gui.store.e", "torch.nn",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("graph", "groups"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e", "a"}, "e": {"d"}}, [["a", "b", "c"], ["d", "e"]]),
    ],
)
def test_a_cycle_is_a_group_that_reaches_itself(graph: dict[str, set[str]], groups: list[list[str]]) -> None:
    """Of three as of two; who only imports into it is none of it."""
    assert structure.cycles(graph) == groups


def test_data_without_qt_are_kept_so_by_a_contract_or_counted(tmp_path: Path) -> None:
    """Reached through others too; the trainer's modules have contracts of their own."""
    modules = tree(
        tmp_path,
        gradacc_gui__run__kept="x = 1",
        gradacc_gui__loose='"""Says."""\nx = 1',
        gradacc_gui__empty='"""Says."""',
        gradacc_gui__widget="from PySide6 import QtCore",
        gradacc_gui__user="from gradacc_gui import widget",
        trainer_backend__loop="x = 1",
    )
    contracts = [
        {"type": "forbidden", "forbidden_modules": ["PySide6"], "source_modules": ["gradacc_gui.run"]},
        {"type": "forbidden", "forbidden_modules": ["torch"], "source_modules": ["gradacc_gui"]},
        {"type": "layers", "layers": ["gradacc_gui.loose"]},
    ]
    assert structure.find(modules, contracts).data_modules_outside_contract == ["gradacc_gui.loose"]


def test_names_that_two_bear_are_told_with_their_places(tmp_path: Path) -> None:
    """Public classes at the top, and modules; packages and __main__ share their names with right."""
    modules = tree(
        tmp_path,
        gradacc_gui__run__a="class One: pass\nclass _Own: pass\nclass Two:\n    class Inner: pass",
        trainer_backend__run__a="class One: pass\nclass _Own: pass\nclass Inner: pass",
        **{"gradacc_gui/__main__": "class Inner: pass", "trainer_backend/__main__": ""},
    )
    found = structure.find(modules, [])
    assert found.module_stems_twice == ["a: gradacc_gui.run.a, trainer_backend.run.a"]
    assert found.public_class_names_twice == [
        "Inner: gradacc_gui.__main__, trainer_backend.run.a",
        "One: gradacc_gui.run.a, trainer_backend.run.a",
    ]


def test_lines_of_code_are_those_that_do_something(tmp_path: Path) -> None:
    """No blanks, comments and docstrings, those of fields neither; each line of a long string."""
    modules = tree(
        tmp_path,
        gradacc_gui__a='''"""Of two

lines."""

import os  # one


# none
class Some:
    """None."""

    size: int = 3
    """None."""

    def call(self):
        return (
            # none
            os.path
        )


TEXT = """
one

more
"""
''',
    )
    assert structure.code_lines(modules["gradacc_gui.a"]) == 12


def test_the_figures_are_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Of this very tree, all seven."""
    import json

    structure.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures) == {*structure.Found.__struct_fields__, "code_lines"}
    assert figures["folds_of_facts"] >= 1
    assert figures["code_lines"] > 10_000
