"""CUDA_VISIBLE_DEVICES, read as CUDA reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_backend.readings.visible import visible_devices

UUIDS = ["GPU-aa00", "GPU-ab00", "GPU-cc00"]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        ("2, 0", [2, 0]),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("3", []),
        ("0,,1", [0]),
        ("0,0", []),
        ("1,0,1", []),
        ("1x,2", [1, 2]),
        ("x,1", []),
        ("NoDevFiles", []),
        ("1,GPU-aa00", [1]),
        ("GPU-cc00,GPU-aa00", [2, 0]),
        ("GPU-c,GPU-ab", [2, 1]),
        ("GPU-a", []),
        ("GPU-c,GPU-a,GPU-ab", [2]),
        ("GPU-c,GPU-zz,GPU-ab", [2]),
        ("GPU-c,GPU-cc00", []),
        ("GPU-c,1", [2]),
        ("gpu-cc00", []),
        ("MIG-1234", ["MIG-1234"]),
        ("MIG-1234,MIG-5678", ["MIG-1234"]),
        ("MIG-1234,MIG-1234", []),
        ("MIG-GPU-aa00/1/0", ["MIG-GPU-aa00/1/0"]),
        ("MIG-1234,0", ["MIG-1234"]),
    ],
)
def test_each_way_of_naming_devices_shows_what_cuda_would_show(
    variable: str | None, expected: list[int | str]
) -> None:
    """Numbers, UUIDs in full and abbreviated, MIG devices, duplicates, and what ends the list."""
    assert visible_devices(variable, UUIDS) == expected


@given(st.lists(st.integers(min_value=0, max_value=9), unique=True), st.integers(min_value=0, max_value=9))
def test_numbers_count_up_to_the_first_that_is_no_card(numbers: list[int], cards: int) -> None:
    """What stands before it is shown in the order asked for."""
    expected = []
    for number in numbers:
        if number >= cards:
            break
        expected.append(number)
    assert visible_devices(",".join(map(str, numbers)), [f"GPU-{i}" for i in range(cards)]) == expected
