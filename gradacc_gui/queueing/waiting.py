"""What a waiting run waits for, in words; and what the list of runs shows of the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gradacc_gui.queueing import slots
from gradacc_gui.queueing.entries import EndedEntry, Queue, QueueEntry, QueueSettings
from gradacc_gui.queueing.slots import TakenDevices
from gradacc_gui.words import tr
from trainer_backend.errors import GradaccError


class WaitingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the queue, as it is shown."""

    entry: QueueEntry
    name: str
    place: int
    waits_for: str
    skipped: bool
    """It cannot be started: `waits_for` says why."""
    unstarted: bool
    """It was never trained, so that removing it from the queue deletes it."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The queue at one moment."""

    settings: QueueSettings = QueueSettings()
    running: tuple[str, ...] = ()
    """Ids of the runs that the queue started and that have not ended."""
    waiting: tuple[WaitingRun, ...] = ()
    done: tuple[EndedEntry, ...] = ()


def look(queue: Queue | None = None) -> QueueView:
    """The queue as it is now. Reads files: not for the GUI thread."""
    queue = queue or Queue()
    entries = queue.waiting()
    settings = queue.settings()
    return QueueView(
        settings=settings,
        running=tuple(entry.run for entry in queue.running()),
        waiting=tuple(_waiting_runs(entries, settings, slots.taken() if entries else [])),
        done=tuple(queue.done()),
    )


def _waiting_runs(
    entries: Sequence[QueueEntry], settings: QueueSettings, live: list[TakenDevices]
) -> Iterator[WaitingRun]:
    """Each with what it waits for: a live run, or one that stands before it."""
    for place, entry in enumerate(entries, 1):
        name = entry.directory.asked_name or entry.run
        fault = _fault(entry)
        yield WaitingRun(
            entry=entry,
            name=name,
            place=place,
            waits_for=fault or _why_it_waits(entry, settings, live),
            skipped=bool(fault),
            unstarted=is_unstarted(entry),
        )
        if not fault and (device := _free_device(entry, settings, live)) is not None:
            live = [*live, TakenDevices(entry.directory, name, (device,))]


def _free_device(entry: QueueEntry, settings: QueueSettings, live: Sequence[TakenDevices]) -> str | None:
    asked = slots.wanted(entry.directory.recipe_value("run.device"))
    return slots.free_device(asked, live, cpu_runs=settings.cpu_runs, kept_free=settings.kept_free)


def is_unstarted(entry: QueueEntry) -> bool:
    """Whether a waiting run was never trained at all."""
    return entry.head == 0 and not entry.directory.journal_path.exists()


def _why_it_waits(entry: QueueEntry, settings: QueueSettings, live: Sequence[TakenDevices]) -> str:
    if settings.paused:
        return tr("waits: the queue is paused")
    asked = slots.wanted(entry.directory.recipe_value("run.device"))
    allowed = [device for device in asked if device not in settings.kept_free]
    if not allowed:
        return tr("waits: the queue keeps {devices} free").format(devices=", ".join(map(shown, asked)))
    if _free_device(entry, settings, live) is not None:
        return tr("starts next")
    other = slots.in_the_way(allowed, live)
    devices = tr("a GPU") if len(allowed) > 1 else shown(allowed[0])
    return tr("waits for {device} ({name})").format(device=devices, name=other.name if other else "")


def _fault(entry: QueueEntry) -> str:
    """Why a waiting run cannot be started; empty when it can."""
    run = entry.directory
    if not run.path.is_dir():
        return tr("Its folder was deleted; it will be skipped.")
    try:
        run.recipe()
    except GradaccError as error:
        return tr("It will be skipped: {reason}").format(reason=str(error).splitlines()[0])
    return ""


def shown(device: str) -> str:
    """A device for people: GPU 1, CPU."""
    kind, _, index = device.partition(":")
    return f"GPU {index or 0}" if kind == "cuda" else {"cpu": "CPU", "mps": "Apple GPU"}.get(device, device)
