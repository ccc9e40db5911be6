"""What tasks, models and losses report, by code, in sentences: {names} come with the code. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from trainer_backend.kinds.text_warnings import TEXT_WARNINGS

TASK_WARNINGS: Final[dict[str, str]] = {
    # The model and the loss.
    "batch-norm": "BatchNorm ({modules} modules, first {first}) sees each micro-batch of {micro_batch_size} "
    "on its own, not the effective batch. Use GroupNorm or LayerNorm, a larger micro-batch, or a momentum of "
    "{suggested_momentum}.",
    "batch-norm-of-one": "BatchNorm ({modules} modules, first {first}) sees a single sample at a time: it"
    " normalizes each by itself, and fails where a sample has one value per channel."
    " Use a larger micro-batch with a smaller N, freeze these layers, or use"
    " GroupNorm.",
    "optimizer-in-backward": "A hook on {parameter} runs inside the backward and may change it before the "
    "step's end; accumulation is then not exact.",
    "reentrant-checkpointing": "Under reentrant checkpointing {parameter} is used more than once, so its "
    "micro-batch norms may not be known. Use use_reentrant=False.",
    "half-gradients": "{parameters} parameters gather their gradients in half precision, which is inexact; "
    "accumulation.gradient_dtype = fp32 is exact.",
    "loss-half": "The total of {term} is {dtype}; return it in fp32, or it is refused.",
    "loss-mean": "The total of {term} looks like a mean, while its weight says it is a sum. Return the sum.",
    "loss-weight-not-additive": "The weight of {term} for a batch is not that of its parts together; the "
    "micro-batches of a step will not add up to the large batch.",
    "loss-not-additive": "The loss {term} of a batch is not the sum of its parts'; N micro-batches are then "
    "another loss than one large batch. Contrastive and batch-wide losses are such.",
    # The data.
    "loss-changes-batch": "The loss changes its batch in place ({tensor}). It gets copies, so that "
    "replays stay exact; that costs memory and time.",
    "no-validation-data": "{samples} samples are too few to hold any out, so there is no validation loss.",
    "images-skipped": "{count} images cannot be used and are left out.",
    "hidden-files": "{count} hidden files in {key}, such as {first}, are skipped.",
    "values-below-range": "The values of these pictures reach {highest}: {bits} bits in 16. They are divided "
    "by 65,535; to use the whole range, set data.value_range = [0, {range_high}].",
    "own-normalization": "Pictures are normalized as {model} was trained: {values}.",
    "picture-turned-alone": "In {count} pairs, such as {first}, the orientation tag turns the picture or the "
    "mask alone; each is turned as it says.",
    "mask-borders-ignored": "Mask value {value} ({percent} % of the pixels) lies only between classes: these "
    "pixels have no loss.",
    "mask-much-ignored": "{percent} % of all mask pixels are ignored (value {value}).",
    "mask-classes-missing": "No mask has these classes: {classes}. data.allow_missing_classes permits that.",
    "export-group-norm": "The exported network has GroupNorm where {library} has BatchNorm: its weights fit "
    "a network that was changed in the same way.",
    "attention-eager": "{model} has no sdpa attention in this version of transformers; eager is used.",
    "weights-missing": "{count} weights of {model} are not in its files and start at random, {first} first.",
    "loss-not-proven": "{tokens} tokens of {vocabulary} logits are too many to hold at once: the loss in "
    "chunks is compared with itself, not with its definition.",
    "loss-chunked": "The loss is taken in chunks of tokens: the same sum and gradient, without holding"
    " {vocabulary} logits of every token at once.",
    "loss-not-chunked": "The logits of all tokens are held at once ({vocabulary} a token), since"
    " {reason}: the loss cannot be taken in chunks.",
    "merged-export-not-offered": "Weights trained with {method} are saved as an adapter, not merged.",
    **TEXT_WARNINGS,
}


class Figures(dict[str, Any]):
    """Values for a template: thousands are marked; one that is missing is a question mark, never a crash."""

    def __missing__(self, key: str) -> str:
        return "?"

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - any value
        value = super().__getitem__(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:,}"
        return f"{value:.4g}" if isinstance(value, float) else "?" if value is None else value


def worded(
    table: Mapping[str, str], code: str, values: Mapping[str, Any], tr: Callable[[str], str] = str
) -> str:
    """The sentence of `code`, filled; an unknown code is told with all it brings."""
    template = table.get(code)
    if template is not None:
        return tr(template).format_map(Figures(values))
    told = ", ".join(f"{key} = {value}" for key, value in values.items())
    return code.replace("-", " ").replace("_", " ") + (f" ({told})" if told else "")


def warning_sentence(code: str, values: Mapping[str, Any]) -> str:
    """What a task warns of, in words."""
    return worded(TASK_WARNINGS, code, values)
