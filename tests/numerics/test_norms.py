"""Norms of gradients: right to fp32 whatever a tensor's size and layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trainer_backend.engine.norms import MicroBatchNorms, total_norm

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda values: values,
    "one row": lambda values: values.view(1, -1),
    "few rows": lambda values: values.view(4, -1),
    "transposed": lambda values: values.view(2048, -1).t(),
    "channels last": lambda values: values.view(64, 32, 32, -1).permute(0, 3, 1, 2),
    "with gaps": lambda values: values.view(-1, 2)[:, 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_norm_of_millions_of_elements_is_right_to_fp32(layout: str) -> None:
    """One kernel over four million fp32 squares is 8e-5 off on a CPU."""
    torch.manual_seed(0)
    gradient = LAYOUTS[layout](torch.randn(2**22))
    right = gradient.double().norm().item()
    assert total_norm([gradient, torch.zeros(3)]).item() == pytest.approx(right, rel=5e-7)


def test_a_micro_batch_s_norm_is_right_to_fp32_too() -> None:
    """The hook sees the same large gradient."""
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.zeros(2**22))
    values = torch.randn(2**22)
    norms = MicroBatchNorms()
    norms.attach([parameter])
    (parameter * values).sum().backward()  # type: ignore[no-untyped-call]
    found = norms.take()
    norms.detach()
    assert found is not None
    assert found.item() == pytest.approx(values.double().norm().item(), rel=5e-7)
