"""Whether the effective batch is worth its samples: the noise scale, and one sentence of advice."""

from __future__ import annotations

from gradacc_gui.run.worth import Worth
from gradacc_gui.theme import set_role
from gradacc_gui.widgets.parts import Panel, label, put
from gradacc_gui.words import tr


class WorthPanel(Panel):
    """What the gradients of the micro-batches tell about N."""

    def __init__(self) -> None:
        super().__init__(tr("Is N worth it?"), tr("gradient noise scale"))
        self.setToolTip(
            tr(
                "Up to about this effective batch, more samples per step mean proportionally fewer steps."
                " It is measured from the gradients of the micro-batches."
            )
        )
        self.scale = label(wrap=True)
        set_role(self.scale, "title")
        self.advice = label(wrap=True)
        self.cost = label(role="help", wrap=True)
        self.notes = label(role="help", wrap=True)
        for line in (self.scale, self.advice, self.cost, self.notes):
            self.body.addWidget(line)
        self._shown: Worth | None = None
        self.hide()

    def show_worth(self, worth: Worth | None) -> None:
        """Show what is known now; None hides the panel: nothing is measured."""
        if worth == self._shown:
            return
        self._shown = worth
        self.setVisible(worth is not None)
        if worth is None:
            return
        put(self.scale, worth.scale)
        for line, text in (
            (self.advice, worth.advice), (self.cost, worth.cost), (self.notes, " ".join(worth.notes))
        ):  # fmt: skip
            put(line, text)
            line.setVisible(bool(text))
