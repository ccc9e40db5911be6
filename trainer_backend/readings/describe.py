"""Which GPUs this machine has and which of them CUDA would show, told without torch."""

from __future__ import annotations

import os

import msgspec

from trainer_backend.protocol import Warned
from trainer_backend.readings.nvml import Handle, Nvml, NvmlUnavailableError, reason_of
from trainer_backend.readings.visible import names_ordinals, visible_devices


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One card, as NVML knows it."""

    nvml_index: int
    cuda_index: int | None
    """As torch would count it here; None when CUDA_VISIBLE_DEVICES hides it, or when nobody can tell."""
    name: str
    uuid: str
    memory_total_bytes: int | None


class Accelerators(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of the machine, and why there are none where there are none."""

    cards: tuple[Accelerator, ...] = ()
    driver_version: str = ""
    visible_variable: str | None = None
    """CUDA_VISIBLE_DEVICES; None when it is not set."""
    mig_uuid: str = ""
    """The one MIG device that CUDA shows, when that is what CUDA_VISIBLE_DEVICES names."""
    order_is_known: bool = True
    """False when only CUDA can tell which number belongs to which card: unlike cards, fastest first."""
    problem: Warned | None = None
    """Why NVML told nothing: no library, no driver, a driver that does not match …"""


def describe_devices() -> Accelerators:
    """Ask NVML for the machine's cards. Never raises, starts no process, needs no torch."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        nvml = Nvml()
    except NvmlUnavailableError as error:
        return Accelerators(visible_variable=variable, problem=error.warned)
    try:
        return _described(nvml, variable)
    except nvml.Error as error:
        problem = Warned(code="nvml-failed", values={"reason": reason_of(error)})
        return Accelerators(visible_variable=variable, problem=problem)
    finally:
        nvml.close()


def cuda_uuid(nvml: Nvml, index: int) -> str:
    """The UUID of CUDA's device `index`, where torch did not give it. Raises LookupError, with a code."""
    cards = _described(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if cards.mig_uuid and index == 0:
        return cards.mig_uuid
    if not cards.order_is_known:
        raise LookupError("order-unknown")
    for card in cards.cards:
        if card.cuda_index == index:
            return card.uuid
    raise LookupError("not-visible")


def _described(nvml: Nvml, variable: str | None) -> Accelerators:
    api = nvml.api
    handles = nvml.handles()
    names = [str(api.nvmlDeviceGetName(handle)) for handle in handles]
    uuids = [str(api.nvmlDeviceGetUUID(handle)) for handle in handles]
    visible = visible_devices(variable, uuids)
    known = not names_ordinals(variable) or _ordinals_follow_nvml(names)
    cuda_index = {place: index for index, place in enumerate(visible)} if known else {}
    return Accelerators(
        cards=tuple(
            Accelerator(
                nvml_index=place,
                cuda_index=cuda_index.get(place),
                name=names[place],
                uuid=uuids[place],
                memory_total_bytes=_total_bytes(nvml, handle),
            )
            for place, handle in enumerate(handles)
        ),
        driver_version=str(api.nvmlSystemGetDriverVersion()),
        visible_variable=variable,
        mig_uuid=next((device for device in visible if isinstance(device, str)), ""),
        order_is_known=known,
    )


def _ordinals_follow_nvml(names: list[str]) -> bool:
    """NVML counts by PCI address. CUDA does so too when told to, or when all cards are equally fast."""
    return os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(set(names)) <= 1


def _total_bytes(nvml: Nvml, handle: Handle) -> int | None:
    try:
        return int(nvml.api.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.Error:  # a card that shares the host's memory has none of its own to tell
        return None
