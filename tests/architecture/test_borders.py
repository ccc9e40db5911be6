"""The borders between the packages: kept, and each seen to fail on a mutant."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("gradacc_gui", "trainer_backend")
SETTINGS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
CONTRACTS: dict[str, dict[str, Any]] = {contract["id"]: contract for contract in SETTINGS["contracts"]}
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"

MUTANTS = {
    "trainer-without-window": ("trainer_backend/inbox.py", "import PySide6.QtCore"),
    "window-without-torch": ("gradacc_gui/run/numbers.py", "from trainer_backend.engine import window"),
    "shared-language-is-light": ("trainer_backend/protocol.py", "import numpy"),
    "data-without-widgets": ("gradacc_gui/series.py", "from gradacc_gui import theme"),
    "commands-without-window": ("gradacc_gui/session/runs.py", "from PySide6 import QtCore"),
    "line-to-the-pixel": ("gradacc_gui/series.py", "from gradacc_gui import store"),
    "trainer-in-layers": ("trainer_backend/engine/window.py", "from trainer_backend import trainer"),
}


def lint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages in `folder`, whatever is installed."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_all_borders_are_kept() -> None:
    """The very command that a person runs."""
    done = lint(CHECKOUT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_forbidden_import_in_a_file_breaks_its_border(contract: str, tmp_path: Path) -> None:
    """A contract that never failed may name the wrong package."""
    for package in PACKAGES:
        shutil.copytree(CHECKOUT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    file, line = MUTANTS[contract]
    with (tmp_path / file).open("a", encoding="utf-8") as mutant:
        mutant.write(f"\n{line}\n")
    done = lint(tmp_path, "--contract", contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 kept, 1 broken" in done.stdout


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Who imports whom, outside packages too."""
    configuration.configure()  # what import-linter's contracts need when they are checked one by one
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


def is_kept(contract: dict[str, Any], graph: grimp.ImportGraph) -> bool:
    """Whether a contract holds on this graph."""
    kinds = {"forbidden": ForbiddenContract, "layers": LayersContract}
    options = {key: value for key, value in contract.items() if key not in ("id", "name", "type")}
    checked = kinds[contract["type"]](contract["name"], SETTINGS, options)
    return bool(checked.check(copy.deepcopy(graph), verbose=False).kept)


def violations(contract: dict[str, Any]) -> list[tuple[str, str]]:
    """Every (importer, imported) that the contract is to forbid."""
    if contract["type"] == "forbidden":
        return [(source, to) for source in contract["source_modules"] for to in contract["forbidden_modules"]]
    layers = [[name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]]
    upwards = [
        (low, high)
        for depth, lower in enumerate(layers)
        for low in lower
        for upper in layers[:depth]
        for high in upper
    ]
    sideways = [(one, other) for layer in layers for one in layer for other in layer if one != other]
    return upwards + sideways


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_each_pair_of_modules_that_a_border_parts_breaks_it(
    contract: dict[str, Any], graph: grimp.ImportGraph
) -> None:
    """For each of them one such import is added to the true graph; a misspelt name would go unseen."""
    assert is_kept(contract, graph)
    for importer, imported in violations(contract):
        if importer not in graph.modules:  # a layer in brackets may not be there
            continue
        mutant = copy.deepcopy(graph)
        if imported not in mutant.modules:
            mutant.add_module(imported, is_squashed=not imported.startswith(PACKAGES))
        mutant.add_import(importer=importer, imported=imported)
        assert not is_kept(contract, mutant), f"{importer} may import {imported}"


def test_every_folder_of_code_is_a_package_so_that_the_borders_see_it() -> None:
    """A folder without __init__.py is no part of the graph, and anything may hide in it."""
    folders = {path.parent for package in PACKAGES for path in (CHECKOUT / package).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []
