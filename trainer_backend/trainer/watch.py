"""A live run under watch: what the detectors see goes into the journal as alerts."""

from __future__ import annotations

from collections.abc import Callable

from trainer_backend.engine import Accumulator
from trainer_backend.noise_scale import NoiseEstimate
from trainer_backend.protocol import (
    AlertRaised,
    AnyEvent,
    DeviceSampled,
    HostSampled,
    OptimizerStepMeasured,
    Warned,
)
from trainer_backend.watching.watcher import Watcher


class Watch:
    """Hands measurements to the watcher, and its alerts to the journal."""

    def __init__(
        self, engine: Accumulator, put: Callable[[AnyEvent], None], *, by_tokens: bool = False
    ) -> None:
        self._engine = engine
        self._put = put
        self._watcher = Watcher(by_tokens=by_tokens)
        self._unreached_told = False

    def take_step(
        self, event: OptimizerStepMeasured, micro_batch_size: int, noise: NoiseEstimate | None
    ) -> None:
        """One window more."""
        self._raise(self._watcher.take_step(event, micro_batch_size=micro_batch_size, noise=noise))
        sizes = self._engine.update_sizes
        ratio = sizes.take()
        if ratio is not None:
            self._raise(self._watcher.take_update_ratio(ratio))
        if sizes.unreached is not None and not self._unreached_told:
            self._unreached_told = True
            self._raise(self._watcher.take_unreached(sizes.unreached, sizes.parameters))

    def sampled(self, event: DeviceSampled | HostSampled | Warned) -> None:
        """A reading, in the sampler's thread: it goes on into the journal."""
        self._put(event)
        if not isinstance(event, Warned):
            self._raise(self._watcher.take_reading(event))

    def _raise(self, alerts: list[AlertRaised]) -> None:
        for alert in alerts:
            self._put(alert)
