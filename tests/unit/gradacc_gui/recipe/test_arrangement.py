"""Every field stands once on the page, whatever the kind."""

from __future__ import annotations

import pytest

from gradacc_gui.recipe.arrangement import CHOICE_OF, PANELS, applies, fields_of, is_rare, span_of, title_of
from gradacc_gui.recipe.field_specs import all_specs
from trainer_backend.config import KINDS


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_field_stands_in_exactly_one_panel(kind: str) -> None:
    """A key that is added to the configuration shows by itself."""
    shown = [spec.path for panel in PANELS for spec in fields_of(panel, kind)]
    stands = [
        path for first in shown for path in (CHOICE_OF[first].paths if first in CHOICE_OF else (first,))
    ]
    assert sorted(stands) == sorted(all_specs(kind))


@pytest.mark.parametrize("kind", list(KINDS))
def test_titles_are_told_apart_within_a_panel(kind: str) -> None:
    """Two fields called "Every" side by side would be a riddle."""
    for panel in PANELS:
        titles = [title_of(spec) for spec in fields_of(panel, kind)]
        assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_required_never_waits_behind_more(kind: str) -> None:
    """A field without a default is seen at once."""
    hidden = [
        spec.path
        for panel in PANELS
        for spec in fields_of(panel, kind)
        if spec.required and is_rare(spec, panel)
    ]
    assert hidden == []


def test_fields_of_another_optimizer_do_not_apply() -> None:
    """Momentum is SGD's, betas are Adam's."""
    assert applies("optimizer.momentum", lambda _path: "sgd")
    assert not applies("optimizer.betas", lambda _path: "sgd")
    assert applies("run.seed", lambda _path: "")


def test_no_field_takes_more_columns_than_there_are() -> None:
    """On a narrow page each field has a row."""
    for spec in all_specs("custom").values():
        assert [span_of(spec, columns) <= columns for columns in (1, 2, 3, 4)] == [True] * 4
