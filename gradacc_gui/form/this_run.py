"""The panel that says what the form amounts to: the product, the length, the parameters."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel

from gradacc_gui.recipe import estimate
from gradacc_gui.recipe.draft import Draft
from gradacc_gui.recipe.estimate import BATCH_PATH, MICRO_PATH, N_PATH, Factors
from gradacc_gui.recipe.published_rules import effective_batch_of
from gradacc_gui.run.numbers import DASH, short
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.parts import Panel, label, put
from gradacc_gui.words import tr
from trainer_backend.config import RunConfig


class ThisRunPanel(Panel):
    """`b × N × world = B`, and what follows."""

    def __init__(self) -> None:
        super().__init__(tr("This run"))
        grid = QGridLayout()
        grid.setHorizontalSpacing(space(1))
        grid.setVerticalSpacing(0)
        captions = (tr("micro-batch"), tr("N"), tr("world"), tr("effective"))
        self._numbers: list[QLabel] = []
        for place, caption in enumerate(captions):
            number = label(DASH, "number")
            self._numbers.append(number)
            grid.addWidget(number, 0, 2 * place)
            grid.addWidget(label(caption, "help"), 1, 2 * place)
            if place < 3:
                sign = label("=" if place == 2 else "×", "muted")
                grid.addWidget(sign, 0, 2 * place + 1, Qt.AlignmentFlag.AlignCenter)
                grid.setColumnStretch(2 * place + 1, 1)
        self.body.addLayout(grid)
        self.words = label("", wrap=True)
        self.kappa = label("", "help", wrap=True)
        self.body.addWidget(self.words)
        self.body.addWidget(self.kappa)
        self.kappa.hide()

    def show_draft(self, draft: Draft, config: RunConfig | None, samples_an_epoch: int | None = None) -> None:
        """Say what the draft amounts to now; `config` when all of it is right."""
        factors = Factors(draft)
        values = (factors.micro_batch, factors.steps, factors.world, factors.effective)
        typed = (
            draft.text(MICRO_PATH),
            "" if factors.from_batch else draft.text(N_PATH),
            draft.text("run.devices"),
            draft.text(BATCH_PATH) if factors.from_batch else "",
        )
        wrong = [value is None for value in values]
        # Of N and the effective batch the one that was typed is to be mended; the other only follows.
        wrong[1] = wrong[1] and not factors.from_batch
        wrong[3] = factors.from_batch and (wrong[3] or factors.steps is None)
        for place, (number, value) in enumerate(zip(self._numbers, values, strict=True)):
            shown = f"{value:,}" if value is not None else typed[place].strip()[:7]
            put(number, shown or DASH)
            usual = "number-accent" if place == 3 and value else "number"
            set_role(number, "number-bad" if wrong[place] else usual)
        self.setAccessibleDescription(" ".join(number.text() for number in self._numbers))
        put(self.words, _sentence(config, factors, samples_an_epoch))
        self.words.setVisible(bool(self.words.text()))
        self._say_kappa(draft, factors.effective)

    def number(self, place: int) -> str:
        """What stands at a place: micro-batch, N, world, effective."""
        return self._numbers[place].text()

    def _say_kappa(self, draft: Draft, effective: int | None) -> None:
        published = effective_batch_of(draft.published()) if effective else None
        if published and effective:
            sentence = tr("Published with an effective batch of {count:,} (× {ratio:.4g} here).")
            put(self.kappa, sentence.format(ratio=effective / published, count=published))
        self.kappa.setVisible(bool(published))


def _rounded(count: int) -> int:
    """Three figures of an estimate."""
    return round(count, 3 - len(str(count)))


def _sentence(config: RunConfig | None, factors: Factors, samples_an_epoch: int | None) -> str:
    if config is None:
        return ""
    parts = []
    if factors.later and factors.effective:
        first, last = f"{factors.effective:,}", f"{factors.later[-1][1]:,}"
        way = f"{first} → {last}" if len(factors.later) == 1 else f"{first} → … → {last}"
        parts.append(tr("effective batch {way} by the schedule of N").format(way=way))
    parameters = estimate.parameters(config)
    if parameters is not None:
        parts.append(tr("{count} parameters").format(count=short(parameters)))
    totals = estimate.totals(config, samples_an_epoch)
    about = "" if totals.exact else tr("about") + " "
    if totals.optimizer_steps is not None:
        count = totals.optimizer_steps if totals.exact else _rounded(totals.optimizer_steps)
        parts.append(tr("{about}{count:,} optimizer steps").format(about=about, count=count))
    if totals.samples is not None:
        count = totals.samples if totals.exact else _rounded(totals.samples)
        parts.append(tr("{count:,} samples").format(count=count))
    elif config.run.epochs is not None:
        words = tr("1 epoch") if config.run.epochs == 1 else tr("{count:,} epochs")
        parts.append(words.format(count=config.run.epochs))
    return "\n".join(parts)
