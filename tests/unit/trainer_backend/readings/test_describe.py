"""Which cards there are, told without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import LARGE, MIG, SMALL, run_python

PROGRAM = """
import sys, msgspec
from trainer_backend.readings import describe_devices
print(msgspec.json.encode(describe_devices()).decode())
assert not {"torch", "PySide6"} & set(sys.modules)
"""


def describe(library: Path, **environment: str) -> dict[str, Any]:
    """What a fresh interpreter says of the fake's cards."""
    described: dict[str, Any] = json.loads(run_python(["-c", PROGRAM], library, environment))
    return described


@pytest.mark.parametrize(
    ("environment", "cuda_indices"),
    [
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,0"}, [1, 0]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}, [None, 0]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ""}, [None, None]),
        ({"CUDA_VISIBLE_DEVICES": f"{LARGE},{SMALL}"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b0"}, [None, 0]),
    ],
)
def test_cards_bear_the_numbers_that_torch_would_give_them(
    fake_nvml: Path, environment: dict[str, str], cuda_indices: list[int | None]
) -> None:
    """By the environment, in NVML's own order of cards."""
    found = describe(fake_nvml, **environment)
    assert [card["cuda_index"] for card in found["cards"]] == cuda_indices
    assert [card["name"] for card in found["cards"]] == ["Small Card", "Large Card"]
    assert [card["uuid"] for card in found["cards"]] == [SMALL, LARGE]
    assert found["driver_version"] == "570.00.01"
    assert found["order_is_known"]
    assert found["problem"] is None


def test_unlike_cards_in_cudas_own_order_have_no_number_here(fake_nvml: Path) -> None:
    """CUDA puts the fastest first, and only CUDA knows which that is."""
    found = describe(fake_nvml)
    assert not found["order_is_known"]
    assert [card["cuda_index"] for card in found["cards"]] == [None, None]


def test_one_card_is_number_0_in_any_order(fake_nvml: Path) -> None:
    """The usual machine."""
    found = describe(fake_nvml, FAKE_NVML_COUNT="1")
    assert [(card["name"], card["cuda_index"]) for card in found["cards"]] == [("Small Card", 0)]


def test_the_mig_device_that_cuda_would_show_is_named(fake_nvml: Path) -> None:
    """A process can use one of them."""
    assert describe(fake_nvml, CUDA_VISIBLE_DEVICES=MIG)["mig_uuid"] == MIG


def test_a_card_without_memory_of_its_own_is_described_all_the_same(fake_nvml: Path) -> None:
    """Cards that share the host's memory tell no total."""
    found = describe(fake_nvml, FAKE_NVML_MEMORY_0="3")
    assert [card["memory_total_bytes"] for card in found["cards"]] == [None, 24 * 2**30]


def test_no_library_is_a_reason_not_an_error(tmp_path: Path) -> None:
    """An empty file stands where the library would be."""
    (tmp_path / "libnvidia-ml.so.1").touch()
    found = describe(tmp_path)
    assert found["cards"] == []
    assert found["problem"]["code"] == "nvml-library-missing"
