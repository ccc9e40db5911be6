"""People's configurations against right values that were worked out by hand, through the command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gradacc_gui.cli import main
from tests.support.door import DOOR, cases
from trainer_backend.config import RunConfig
from trainer_backend.config_check import check

IMPORTS = [case for case in cases() if case["id"].startswith("I")]


@pytest.mark.parametrize("case", IMPORTS, ids=lambda case: str(case["id"]))
def test_a_configuration_means_what_it_means_to_its_program(
    case: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every key of what is right is held."""
    code = main(["import", str(DOOR / case["input"]), "--json"])
    found = json.loads(capsys.readouterr().out)
    right = dict(case["right"])
    words = right.pop("refused", [])
    assert (code, found["refused"] is None) == ((2, False) if words else (0, True))
    assert all(word in found["refused"] for word in words)
    assert right.pop("recipe").items() <= found["recipe"].items()
    assert all(any(word in one for one in found["said"]) for word in right.pop("said", []))
    assert found["open"] == right.pop("open", found["open"])
    for name, kind in (("changes_the_run", "changes-the-run"), ("harmless", "harmless")):
        keys = {line["key"] for line in found["account"] if line["class"] == kind}
        assert keys == set(right.pop(name, keys))
    assert right == {}, "a key of expected.json is not held"


@pytest.mark.parametrize("case", IMPORTS, ids=lambda case: str(case["id"]))
def test_every_recipe_that_comes_out_opens(case: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """What only the person knows has a stand-in or may be left out."""
    main(["import", str(DOOR / case["input"]), "--json"])
    found = json.loads(capsys.readouterr().out)
    if found["refused"]:
        return
    tables: dict[str, dict[str, Any]] = {}
    for path, value in found["recipe"].items():
        table, _, key = path.partition(".")
        tables.setdefault(table, {})[key] = value
    assert isinstance(check(tables), RunConfig)
