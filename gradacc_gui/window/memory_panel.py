"""Memory now: what torch allocated and reserved, what this process and the whole device hold."""

from __future__ import annotations

import msgspec
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from gradacc_gui.theme import space
from gradacc_gui.window.numbers import gibibytes
from gradacc_gui.window.parts import Bar, Panel, label, put
from gradacc_gui.words import tr
from trainer_backend.protocol import DeviceSampled, HostSampled


class MemoryRow(msgspec.Struct, frozen=True):
    """One line of the panel; `used` None is not known."""

    name: str
    used: int | None
    series: int
    total: int | None
    tip: str = ""


def device_rows(sample: DeviceSampled) -> list[MemoryRow]:
    """The four lines of a GPU, told apart."""
    total = sample.memory_total_bytes
    peak = sample.torch_allocated_peak_bytes
    allocated = (
        tr("torch allocated")
        if peak is None
        else tr("torch allocated (peak {peak})").format(peak=gibibytes(peak))
    )
    return [
        MemoryRow(allocated, sample.torch_allocated_bytes, 0, total, tr("Tensors that live now.")),
        MemoryRow(
            tr("torch reserved"),
            sample.torch_reserved_bytes,
            2,
            total,
            tr("What torch's allocator holds, with its free blocks."),
        ),
        MemoryRow(
            tr("this process"),
            sample.process_memory_bytes,
            1,
            total,
            tr("What the driver says the trainer holds, CUDA context included."),
        ),
        MemoryRow(
            tr("whole device"), sample.memory_used_bytes, 3, total, tr("All processes on this device.")
        ),
    ]


def host_rows(sample: HostSampled) -> list[MemoryRow]:
    """The process and the machine, for a run on the CPU (or whose GPU cannot be read)."""
    total = sample.host_memory_total_bytes
    rows = [
        MemoryRow(
            tr("this process"), sample.process_rss_bytes, 1, total, tr("Resident memory of the trainer.")
        )
    ]
    if sample.workers_rss_bytes:
        rows.append(MemoryRow(tr("loader workers"), sample.workers_rss_bytes, 2, total))
    rows.append(MemoryRow(tr("whole machine"), sample.host_memory_used_bytes, 3, total))
    return rows


class _RowWidget(QWidget):
    def __init__(self, row: MemoryRow) -> None:
        super().__init__()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        line = QHBoxLayout()
        self.name = label(role="help")
        self.value = label()
        line.addWidget(self.name)
        line.addStretch(1)
        line.addWidget(self.value)
        self.bar = Bar(row.series)
        column.addLayout(line)
        column.addWidget(self.bar)
        self.show_row(row)

    def show_row(self, row: MemoryRow) -> None:
        put(self.name, row.name)
        put(self.value, gibibytes(row.used) if row.used is not None else tr("not known"))
        self.bar.set_ratio(row.used / row.total if row.used is not None and row.total else None)
        self.setToolTip(row.tip)
        self.setAccessibleName(f"{row.name}: {gibibytes(row.used)}")


class MemoryPanel(Panel):
    """Bars for the newest reading."""

    def __init__(self) -> None:
        super().__init__(tr("Memory"))
        self._rows: list[_RowWidget] = []
        self.reason = label(role="help", wrap=True)
        self.reason.hide()
        self.empty = label(tr("Readings come once the trainer runs."), "help", wrap=True)
        self.body.addWidget(self.empty)
        self._place = QVBoxLayout()
        self._place.setSpacing(space(2))
        self.body.addLayout(self._place)
        self.body.addWidget(self.reason)

    def show_samples(self, device: DeviceSampled | None, host: HostSampled | None, *, has_gpu: bool) -> None:
        """Show the newest readings; a GPU's four lines where there is one."""
        if device is not None and has_gpu:
            self._show(device_rows(device), device.memory_total_bytes)
        elif host is not None:
            self._show(host_rows(host), host.host_memory_total_bytes)
        else:
            self._show([], None)

    def set_reason(self, sentence: str) -> None:
        """Why something is not known here; empty when all is."""
        put(self.reason, sentence)
        self.reason.setVisible(bool(sentence))

    def _show(self, rows: list[MemoryRow], total: int | None) -> None:
        self.empty.setVisible(not rows)
        put(self.hint, tr("of {total}").format(total=gibibytes(total)) if total else "")
        if len(rows) != len(self._rows):
            for old in self._rows:
                self._place.removeWidget(old)
                old.deleteLater()
            self._rows = [_RowWidget(row) for row in rows]
            for widget in self._rows:
                self._place.addWidget(widget)
        for widget, row in zip(self._rows, rows, strict=True):
            widget.show_row(row)

    def texts(self) -> list[tuple[str, str]]:
        """Names and values as shown."""
        return [(row.name.text(), row.value.text()) for row in self._rows]
