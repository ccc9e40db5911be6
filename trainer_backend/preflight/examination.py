"""One check of one recipe, from its first records to a micro-batch through its model, told as it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from trainer_backend.errors import GradaccError
from trainer_backend.kinds.task_warnings import warning_sentence
from trainer_backend.preflight import data_checks
from trainer_backend.preflight.check_words import sentence
from trainer_backend.preflight.data_checks import found, timed
from trainer_backend.preflight.findings import (
    AnyCheckMessage,
    CheckProgress,
    CheckReport,
    ClassShares,
    DataDecisions,
    Finding,
    FirstWindow,
    PictureValues,
)
from trainer_backend.preflight.first_window import DataRead, Heard, first_window, read_data
from trainer_backend.recipe import Recipe
from trainer_backend.trainer.failures import print_whole, sentence_of

Put: TypeAlias = Callable[[AnyCheckMessage], None]
QUICK_RECORDS: Final[dict[str, int]] = {"causal-lm": 200, "segmentation": 16, "image-classification": 64}
"""What the quick look reads of each data path, by kind; the others are read whole at once."""
PICTURES: Final = frozenset({"segmentation", "image-classification"})
QUICK_SAMPLES: Final = 16
QUICK_S: Final = 2.0


class Examination:
    """Checks a recipe; `put` hears of each part when it is known, and the report has all of it."""

    def __init__(
        self,
        recipe: Recipe,
        put: Put,
        *,
        pictures: Path | None = None,
        quick: bool = False,
        model: bool = True,
    ) -> None:
        self._recipe, self._tell = recipe, put
        self._pictures, self._quick, self._model = pictures, quick, model
        self._heard: Heard = []
        self._findings: list[Finding] = []
        self._window: FirstWindow | None = None
        self._shares: ClassShares | None = None
        self._values: PictureValues | None = None

    def run(self) -> CheckReport:
        """All of it. What the data, the model or the user's code refuse is a finding, not an error."""
        began, made_at = time.perf_counter(), time.time()
        if self._quick and self._recipe.config.kind in QUICK_RECORDS:
            self._look_quickly()
        data = self._read()
        if data is not None:
            self._check(data)
        refused = next((sentence(entry) for entry in self._findings if entry.state == "stop"), None)
        return CheckReport(
            made_at=made_at,
            duration_s=time.perf_counter() - began,
            recipe=self._recipe.config.run.name,
            kind=self._recipe.config.kind,
            refused=refused,
            said=tuple(dict.fromkeys(warning_sentence(code, values) for code, values in self._heard)),
            window=self._window,
            shares=self._shares,
            values=self._values,
            findings=tuple(self._findings),
        )

    # -------------------------------------------------------------------------------- the data

    def _look_quickly(self) -> None:
        """The first window of the first records: what is refused here may be right in the whole."""
        most = QUICK_RECORDS[self._recipe.config.kind]
        self._tell(CheckProgress(code="reading-some"))
        try:
            data = read_data(self._recipe, [], most=most, pictures=self._pictures, takes_unknown_ids=True)
            seen = first_window(data, most_samples=QUICK_SAMPLES, most_s=QUICK_S, looked_at=most)
        except Exception as error:  # noqa: BLE001 - the whole look, which follows, says what is wrong
            shown = self._undecided(error) if self._recipe.config.kind == "segmentation" else None
            if shown is not None:
                self._tell(msgspec.structs.replace(shown[1], whole=False, looked_at=most))
            return
        self._tell(seen)

    def _read(self) -> DataRead | None:
        """The data and its first window; None where it is refused, which is then a finding."""
        self._tell(CheckProgress(code="reading-data"))
        began = time.perf_counter()
        try:
            data = read_data(self._recipe, self._heard, pictures=self._pictures, takes_unknown_ids=True)
            read_s = time.perf_counter() - began
            too_few = list(data_checks.check_n(data.config, data.stream.samples_per_epoch))
            if too_few[0].state == "stop":  # not even one step can be put together
                self._put_all(iter([*too_few, found("model-later", "waits")]))
                return None
            self._window = first_window(data)
        except Exception as error:  # noqa: BLE001 - the user's own code may raise anything
            self._refuse(error, time.perf_counter() - began)
            return None
        self._tell(self._window)
        self._count_classes(data, read_s)
        self._tell(
            DataDecisions(sentences=tuple(warning_sentence(code, values) for code, values in self._heard))
        )
        self._put_all(self._dated(data_checks.check_records(data, self._window), read_s))
        return data

    @staticmethod
    def _dated(findings: Iterator[Finding], first_s: float) -> Iterator[Finding]:
        """The first finding took the time of reading."""
        for number, finding in enumerate(findings):
            yield finding if number else msgspec.structs.replace(finding, duration_s=first_s)

    def _refuse(self, error: Exception, duration_s: float) -> None:
        if not isinstance(error, GradaccError):
            print_whole(error)
        finding = found("data-refused", "stop", sentence=sentence_of(error))
        if self._recipe.config.kind == "segmentation":
            decided = self._undecided(error)
            if decided is not None:
                finding, self._window, self._shares = decided
                self._tell(self._window)
                self._tell(self._shares)
        if self._recipe.config.kind in PICTURES:
            finding = self._unscaled(error) or finding
        later = found("model-later", "waits")
        self._put_all(iter([msgspec.structs.replace(finding, duration_s=duration_s), later]))

    def _undecided(self, error: Exception) -> tuple[Finding, FirstWindow, ClassShares] | None:
        """Masks that need a decision are shown with the pictures that they lie over."""
        from trainer_backend.preflight import mask_decisions  # noqa: PLC0415 - vision's libraries

        return mask_decisions.undecided(self._recipe, error, self._pictures)

    def _unscaled(self, error: Exception) -> Finding | None:
        """Numbers without a scale are measured, and a range is proposed."""
        from trainer_backend.preflight import picture_checks  # noqa: PLC0415 - vision's libraries

        asked = picture_checks.range_asked_for(self._recipe, error)
        if asked is None:
            return None
        finding, self._values = asked
        self._tell(self._values)
        return finding

    def _count_classes(self, data: DataRead, read_s: float) -> None:
        if self._recipe.config.kind not in PICTURES:
            return
        from trainer_backend.preflight import picture_checks  # noqa: PLC0415 - vision's libraries

        self._shares = picture_checks.class_shares(data, read_s)
        self._tell(self._shares)
        self._values = picture_checks.measure_values(data)
        if self._values is not None:
            self._tell(self._values)

    # ------------------------------------------------------------------------------- the checks

    def _check(self, data: DataRead) -> None:
        assert self._window is not None
        config, samples = data.config, self._window.samples
        self._tell(CheckProgress(code="checking-data"))
        self._put_all(timed(data_checks.check_ids, data))
        self._put_all(timed(data_checks.check_lengths, data, self._window))
        self._put_all(timed(data_checks.check_n, config, samples))
        self._put_all(timed(data_checks.check_warmup, config, samples))
        self._put_all(timed(data_checks.check_split, data))
        self._put_all(timed(data_checks.check_template, data))
        if config.kind in PICTURES:
            from trainer_backend.preflight import picture_checks  # noqa: PLC0415 - vision's libraries

            self._put_all(timed(picture_checks.check_pictures, data, self._values))
        if not self._model:
            return
        if any(finding.state == "stop" for finding in self._findings):
            self._put_all(iter([found("model-later", "waits")]))
            return
        from trainer_backend.preflight import model_checks  # noqa: PLC0415 - what a refused recipe does not need

        self._tell(CheckProgress(code="building-model"))
        self._put_all(timed(model_checks.check_model, data, self._tell))

    def _put_all(self, findings: Iterator[Finding]) -> None:
        for finding in findings:
            self._findings.append(finding)
            self._tell(finding)
