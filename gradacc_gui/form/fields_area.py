"""All fields of a recipe: the panels, the kind of task, what was published."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QStandardItemModel

from gradacc_gui.form.editors import PathEdit
from gradacc_gui.form.field_view import ChoiceView, FieldView
from gradacc_gui.form.published_panel import PublishedPanel
from gradacc_gui.form.schedule_picture import SchedulePicture
from gradacc_gui.form.section_panel import SectionPanel
from gradacc_gui.recipe.arrangement import CHOICE_OF, PANELS, applies, fields_of
from gradacc_gui.recipe.draft import PUBLISHED, Draft
from gradacc_gui.recipe.estimate import BATCH_PATH, N_PATH, SCHEDULE_PATH, Factors, in_steps, steps_for
from gradacc_gui.recipe.field_specs import ABSENT, FieldSpec, kind_spec
from gradacc_gui.widgets.flow import PanelFlow
from gradacc_gui.words import tr
from trainer_backend.config import RunConfig
from trainer_backend.kinds import KINDS
from trainer_backend.published import Difference, compare

KIND = "task.kind"
RATE_PATH: Final = "optimizer.learning_rate"
HIGH_LEARNING_RATE: Final = 10.0
"""Plain SGD on a normalized loss goes to 1 and somewhat beyond; above this a typing error is likelier."""


class FieldsArea(PanelFlow):
    """Shows a draft and tells what a person does to it; changes nothing in it."""

    edited = Signal(str, str)
    chosen = Signal(str, str)
    """Path that was counted, path that is counted now."""
    kind_chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._draft: Draft | None = None
        self._faults: Mapping[str, str] = {}
        self.kind = FieldView(kind_spec())
        self.kind.edited.connect(lambda _path, kind: self.kind_chosen.emit(kind))
        self.panels = tuple(SectionPanel(panel, self._make_view) for panel in PANELS)
        self.panels[0].add_leading(self.kind)
        self.schedule = SchedulePicture()
        for panel in self.panels:
            if "schedule" in panel.arrangement.tables:
                panel.add_trailing(self.schedule)
            panel.opened.connect(self._refresh_views)
        self.published = PublishedPanel()
        self.published.edited.connect(lambda text: self.edited.emit(PUBLISHED, text))
        self.published.fill_requested.connect(lambda text: self._fill("optimizer.learning_rate", text))

    def _make_view(self, spec: FieldSpec) -> FieldView:
        choice = CHOICE_OF.get(spec.path)
        draft = self._draft
        assert draft is not None
        if choice is not None:
            chooser = ChoiceView(choice, tuple(draft.specs[path] for path in choice.paths))
            chooser.chosen.connect(lambda path: self.chosen.emit(chooser.path, path))
            view: FieldView = chooser
        else:
            view = FieldView(spec)
        view.edited.connect(self.edited)
        self._show_text(view, draft)
        view.set_error(self._faults.get(spec.path, ""))
        return view

    def _fill(self, path: str, text: str) -> None:
        self.edited.emit(path, text)
        view = self.view(path)
        if view is not None:
            view.set_text(text)

    # ------------------------------------------------------------------ showing

    def show_draft(self, draft: Draft) -> None:
        """Show another draft, or the same one after its kind changed."""
        self._draft = draft
        self.kind.set_text(draft.kind)
        self.kind.set_help((KINDS[draft.kind].task.__doc__ or "").strip().partition("\n")[0])
        panels = []
        for panel in self.panels:
            specs = tuple(fields_of(panel.arrangement, draft.kind))
            panel.set_specs(
                specs,
                lambda path: applies(path, draft.text),
                lambda path: not self._says_default(draft, path),
            )
            panels.append((panel, len(specs) - len(panel.rare_paths())))
        for view in self.views():
            if view is not self.kind:
                self._show_text(view, draft)
            if isinstance(view.editor, PathEdit):
                view.editor.set_folder(draft.folder)
        text = draft.text(PUBLISHED)
        self.published.toml.set_text(text)
        self.set_panels([*panels, (self.published, 2)])

    @staticmethod
    def _says_default(draft: Draft, path: str) -> bool:
        choice = CHOICE_OF.get(path)
        return all(draft.is_default(each) for each in (choice.paths if choice else (path,)))

    @staticmethod
    def _show_text(view: FieldView, draft: Draft) -> None:
        if isinstance(view, ChoiceView):
            path = draft.chosen(view.choice)
            view.show_choice(path, draft.text(path))
        else:
            view.set_text(draft.text(view.path))

    def _refresh_views(self) -> None:
        self.show_faults(self._faults)

    def arrange_again(self) -> None:
        """Show the fields that apply to the chosen kind and values, and hide the others."""
        for panel in self.panels:
            panel.arrange()

    def show_choice(self, draft: Draft, path: str) -> None:
        """Show what is counted now by the field that `path` is one of."""
        for view in self.views():
            if isinstance(view, ChoiceView) and path in view.choice.paths:
                self._show_text(view, draft)

    # ------------------------------------------------------------------ faults, notes

    def show_faults(self, faults: Mapping[str, str]) -> None:
        """Put each sentence beside its field, which is brought onto the page for it."""
        self._faults = faults
        for path in faults:
            self.reveal(path)
        for view in self.views():
            paths = view.choice.paths if isinstance(view, ChoiceView) else (view.path,)
            view.set_error(next((faults[path] for path in paths if path in faults), ""))
        self.published.set_error(faults.get(PUBLISHED, ""))

    def show_notes(
        self, draft: Draft, factors: Factors, config: RunConfig | None, notes: Mapping[str, str]
    ) -> None:
        """What the typed values amount to, and what was published, beside the fields."""
        published = draft.published()
        differences = compare(published, draft.kind, _values_here(draft, factors))
        self.published.show_published(published, differences, factors.effective)
        differing = {entry.path: entry for entry in differences if not entry.same}
        for view in self.views():
            view.set_extra(notes.get(view.path, "") or _extra(view, draft, factors, config))
            view.set_published(_published_beside(view, differing))

    def grey_kinds(self, reasons: Mapping[str, str]) -> None:
        """Kinds that the chosen interpreter cannot run, and the sentence that says how to mend that."""
        box = self.kind.editor
        model = box.model() if hasattr(box, "model") else None
        assert isinstance(model, QStandardItemModel)
        for row in range(model.rowCount()):
            item = model.item(row)
            reason = reasons.get(str(item.data(Qt.ItemDataRole.UserRole)), "")
            item.setEnabled(not reason)
            item.setToolTip(f"<qt>{html.escape(reason)}</qt>" if reason else "")  # as rich text Qt wraps it

    # ------------------------------------------------------------------ finding a field

    def views(self) -> tuple[FieldView, ...]:
        """Every view that has been made, in the page's order."""
        return (self.kind, *(view for panel in self.panels for view in panel.views()))

    def view(self, path: str) -> FieldView | None:
        """The view that edits `path`, if it has been made."""
        if path == KIND:
            return self.kind
        choice = CHOICE_OF.get(path)
        first = choice.paths[0] if choice else path
        return next((view for panel in self.panels if (view := panel.view(first)) is not None), None)

    def reveal(self, path: str) -> FieldView | None:
        """The view of a field, brought onto the page when it waits behind *More*."""
        if path == KIND:
            return self.kind
        choice = CHOICE_OF.get(path)
        first = choice.paths[0] if choice else path
        return next((view for panel in self.panels if (view := panel.reveal(first)) is not None), None)

    def in_order(self, paths: Mapping[str, str]) -> list[str]:
        """Paths in the order of the page."""
        order = [KIND, *(spec.path for panel in self.panels for spec in panel.specs()), PUBLISHED]
        return sorted(paths, key=lambda path: order.index(path) if path in order else len(order))


def _extra(view: FieldView, draft: Draft, factors: Factors, config: RunConfig | None) -> str:
    """What a field's value amounts to in other words."""
    path = view.path
    if path == SCHEDULE_PATH:
        both = factors.effective is not None and factors.later
        words = tr("Effective batch {count:,}{later}")
        return words.format(count=factors.effective, later=factors.later_words()) if both else ""
    value = draft.valid_value(path) if path in draft.specs else None
    if value is not None and (reading := _reading(path, draft.text(path), value)):
        return reading
    if value is None or factors.effective is None:
        return ""
    if path == N_PATH:
        words = tr("Effective batch {count:,}{later}")
        if factors.scheduled:
            words = tr("The schedule of N sets N = {steps:,} from the start. ") + words
        return words.format(count=factors.effective, later=factors.later_words(), steps=factors.steps)
    if path == BATCH_PATH:
        if factors.scheduled or factors.later:
            words = tr("N = {steps:,} at first: effective batch {count:,}{later}")
            return words.format(count=factors.effective, later=factors.later_words(), steps=factors.steps)
        return "" if factors.steps is None else tr("N = {count:,}").format(count=factors.steps)
    if path in _IN_STEPS and value:
        if config is not None and config.accumulation.schedule:  # steps are not all of one size
            return tr("≈ {count:,} optimizer steps").format(count=steps_for(config, value))
        return in_steps(value, factors.effective)
    return ""


_IN_STEPS: Final = frozenset(
    {
        "checkpoint.every_samples",
        "evaluation.every_samples",
        "run.max_samples",
        "schedule.samples",
        "schedule.timescale_samples",
        "schedule.warmup_samples",
    }
)
"""Counts of samples beside which the form says how many optimizer steps they are."""


def _reading(path: str, text: str, value: object) -> str:
    """How an unusual number was read, where that may not be what was meant; else empty."""
    if path == RATE_PATH and isinstance(value, int | float) and value > HIGH_LEARNING_RATE:
        words = tr("{value:,.4g} is unusually high for a learning rate. Check the decimal point.")
        return words.format(value=value)
    if isinstance(value, int) and value >= 1000 and not text.strip().isdigit():  # 1_000, 1e3
        return tr("= {value:,}").format(value=value)
    return ""


def _values_here(draft: Draft, factors: Factors) -> dict[str, object]:
    """Every value by its path; N and the effective batch both, whichever was typed."""
    here = {path: value for path in draft.specs if (value := draft.value(path)) is not ABSENT}
    if factors.effective is not None:
        here[BATCH_PATH] = factors.effective
    if factors.steps is not None:
        here[N_PATH] = factors.steps
    return here


def _published_beside(view: FieldView, differing: Mapping[str, Difference]) -> str:
    paths = view.choice.paths if isinstance(view, ChoiceView) else (view.path,)
    return " · ".join(differing[path].published for path in paths if path in differing)
