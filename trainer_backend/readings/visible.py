"""Which GPUs CUDA shows to a process, from `CUDA_VISIBLE_DEVICES` alone.

CUDA reads a list of ordinals, of GPU UUIDs (also abbreviated) or of MIG UUIDs. The first entry that
means no device ends the list: what stands before it counts. The kind of the first entry is the kind of
all. A device named twice makes the whole list empty. Of MIG devices a process can use one.
(CUDA C++ Programming Guide, "CUDA Environment Variables".)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MIG_PREFIX: Final = "MIG-"
GPU_PREFIX: Final = "GPU-"

_ORDINAL: Final = re.compile(r"\s*([+-]?)0*([0-9]+)", re.ASCII)
_DIGITS: Final = 9
"""An ordinal of more is no device's, and one of thousands is no number to Python."""


def visible_devices(variable: str | None, uuids: Sequence[str]) -> list[int | str]:
    """CUDA's devices in CUDA's order: places in `uuids`, or the UUID of the one MIG device.

    `variable` is the value of CUDA_VISIBLE_DEVICES, None when it is not set; `uuids` are those of the
    machine's GPUs ("GPU-…"), in the order in which CUDA would number them all.
    """
    if variable is None:
        return list(range(len(uuids)))
    if variable.startswith(MIG_PREFIX):
        return _mig_device(variable)
    if variable.startswith(GPU_PREFIX):
        return _by_uuid(variable, uuids)
    return _by_ordinal(variable, len(uuids))


def names_ordinals(variable: str | None) -> bool:
    """Whether devices are told by number, so that their order is CUDA's own affair."""
    return variable is None or not variable.startswith((GPU_PREFIX, MIG_PREFIX))


def _by_ordinal(variable: str, count: int) -> list[int | str]:
    found: list[int | str] = []
    for entry in variable.split(","):
        # As C's strtol reads it: "1abc" is 1, a blank is no number.
        match = _ORDINAL.match(entry)
        if match is None or len(match[2]) > _DIGITS:
            break
        number = int(match[1] + match[2])
        if not 0 <= number < count:
            break
        if number in found:
            return []
        found.append(number)
    return found


def _by_uuid(variable: str, uuids: Sequence[str]) -> list[int | str]:
    found: list[int | str] = []
    for entry in variable.split(","):
        start = entry.strip()
        matches = [place for place, uuid in enumerate(uuids) if uuid.startswith(start)]
        # An abbreviation that fits several cards, or none, names no device.
        if not start.startswith(GPU_PREFIX) or len(matches) != 1:
            break
        if matches[0] in found:
            return []
        found.append(matches[0])
    return found


def _mig_device(variable: str) -> list[int | str]:
    entries = [entry.strip() for entry in variable.split(",")]
    names = entries[: next((i for i, e in enumerate(entries) if not e.startswith(MIG_PREFIX)), None)]
    if len(set(names)) < len(names):
        return []
    return [names[0]]
