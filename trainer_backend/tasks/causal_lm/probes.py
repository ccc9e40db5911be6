"""What a model does with tokens, seen on a few random ones before anything is trained.

Letters: b rows, s tokens of a row, v vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import torch

from trainer_backend.errors import UsageError

PROBED_TOKENS: Final = 8
APART_LIMIT: Final = 1e-4
"""Of the largest logit, in fp32: rounding is below, seeing another sample far above (recurrences 0.24)."""
APART_LIMIT_HALF: Final = 2e-2
"""The same where the model cannot be looked at in fp32."""
WIDENED_UP_TO_BYTES: Final = 8 * 2**30
"""Half-precision models above this stay in their own precision: fp32 may not fit."""


def probed_tokens(
    model: Any,  # noqa: ANN401 - a PreTrainedModel or a PeftModel
    rows: int = 1,
    tokens: int = PROBED_TOKENS,
) -> torch.Tensor:
    """Random tokens that the model knows, always the same: int64 (b, s), on its device."""
    weight = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, weight.shape[0], (rows, tokens), generator=generator).to(weight.device)


@torch.no_grad()
def probe(model: Any, tokens_bs: torch.Tensor, **options: Any) -> Any:  # noqa: ANN401 - a ModelOutput
    """What the model gives in eval mode; each module is in its own mode again afterwards."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        return model(input_ids=tokens_bs, use_cache=False, **options)
    finally:
        for module, training in was_training.items():
            module.training = training


def takes_positions(model: Any) -> bool:  # noqa: ANN401 - a PreTrainedModel or a PeftModel
    """Whether the forward knows `position_ids` (recurrent and ALiBi models do not)."""
    plain = model.get_base_model() if hasattr(model, "peft_config") else model
    return "position_ids" in inspect.signature(plain.forward).parameters


def refuse_sight_of_later(model: Any, name: str) -> None:  # noqa: ANN401 - a PreTrainedModel or a PeftModel
    """Raises UsageError where later tokens change anything of earlier ones."""
    tokens_bs = probed_tokens(model)
    half = PROBED_TOKENS // 2
    others_bs = tokens_bs.clone()
    others_bs[:, half:] = tokens_bs[:, half:].flip(1).roll(1, dims=1)
    logits = [probe(model, tokens).logits[:, :half] for tokens in (tokens_bs, others_bs)]
    limit = APART_LIMIT if logits[0].dtype == torch.float32 else APART_LIMIT_HALF
    if difference(*logits) > limit:
        message = (
            f"task.model = {name}: its tokens see later ones, so it learns to copy what it should predict."
            " Choose a causal model; an encoder needs is_decoder = true in its config.json."
        )
        raise UsageError(message)


def check_packing(model: Any, name: str, *, takes_positions: bool) -> None:  # noqa: ANN401
    """Two rows packed of four samples, and the samples apart. Raises UsageError where they see each other."""
    if not takes_positions:
        apart = "has no positions to tell packed samples apart by"
    else:
        found = _packed_difference(model)
        if found is None:
            return
        apart = f"lets packed samples see each other (logits differ by {found:.2g} of the largest)"
    message = f'task.layout = "packing": {name} {apart}. Use "padding", perhaps with task.token_budget.'
    raise UsageError(message)


def _packed_difference(model: Any) -> float | None:  # noqa: ANN401 - a PreTrainedModel or a PeftModel
    """How far packed logits are from those of the samples alone; None: no further than rounding."""
    tokens_bs = probed_tokens(model, rows=2, tokens=12)
    cuts = ((0, 5, 12), (0, 8, 12))
    positions_bs = torch.stack(
        [torch.cat([torch.arange(end - begin) for begin, end in _spans(cut)]) for cut in cuts]
    ).to(tokens_bs.device)
    worst = 0.0
    with in_fp32(model) as limit:
        packed_bsv = probe(model, tokens_bs, position_ids=positions_bs).logits
        for row, cut in enumerate(cuts):
            for begin, end in _spans(cut):
                inside = (slice(row, row + 1), slice(begin, end))
                alone = probe(model, tokens_bs[inside], position_ids=positions_bs[inside]).logits
                worst = max(worst, difference(alone, packed_bsv[inside]))
    return None if worst <= limit else worst


def _spans(cut: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(cut))


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference over the largest number; NaN counts as infinite."""
    found = float((one - other).abs().max() / one.abs().max().clamp_min(1e-30))
    return math.inf if math.isnan(found) else found


@contextlib.contextmanager
def in_fp32(model: torch.nn.Module) -> Iterator[float]:
    """Half-precision weights as fp32 and back, to the bit; gives the limit that holds inside.

    Large and quantised models stay as they are, under a wider limit.
    """
    held = [
        tensor
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.dtype in (torch.bfloat16, torch.float16)
    ]
    can_widen = sum(tensor.nbytes for tensor in held) <= WIDENED_UP_TO_BYTES and not any(
        parameter.dtype in (torch.uint8, torch.int8) for parameter in model.parameters()
    )
    if held and not can_widen:
        yield APART_LIMIT_HALF
        return
    dtypes = [tensor.dtype for tensor in held]
    for tensor in held:
        tensor.data = tensor.data.float()
    try:
        yield APART_LIMIT
    finally:
        for tensor, dtype in zip(held, dtypes, strict=True):
            tensor.data = tensor.data.to(dtype)
