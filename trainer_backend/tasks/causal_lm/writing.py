"""What a causal language model writes after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trainer_backend.errors import UsageError
from trainer_backend.tasks.continuations import Continuation, OnText


def continue_text(
    model: Any,  # noqa: ANN401 - a PreTrainedModel or a PeftModel
    tokenizer: Any,  # noqa: ANN401 - any tokenizer class
    ids: Sequence[int],
    *,
    most_tokens: int,
    temperature: float,
    ends: Sequence[int],
    pad: int,
    on_text: OnText,
) -> Continuation:
    """Write after the prompt `ids`; `on_text` hears each finished word. Raises UsageError: too long.

    `ends`: ids that end an answer, beside those that the model's own configuration names.
    """
    room = int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 0)
    if not ids or (room and len(ids) >= room):
        why = f"has {len(ids):,} tokens, and the model takes {room:,}" if ids else "is empty"
        message = f"The prompt {why}. Give a {'shorter ' if ids else ''}prompt."
        raise UsageError(message)
    most = min(most_tokens, room - len(ids)) if room else most_tokens
    own = model.generation_config.eos_token_id
    ends = sorted({*ends, *(own if isinstance(own, list) else [own] if own is not None else [])})
    prompt_1s = torch.tensor([list(ids)], device=model.get_input_embeddings().weight.device)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    found_1s = model.generate(
        input_ids=prompt_1s,
        attention_mask=torch.ones_like(prompt_1s),
        max_new_tokens=most,
        eos_token_id=ends or None,
        pad_token_id=pad,
        use_cache=True,
        streamer=_streamer(tokenizer, on_text),
        **sampling,
    )
    new = found_1s[0, len(ids) :].tolist()
    text: str = tokenizer.decode(new, skip_special_tokens=True)
    return Continuation(text, len(new), ended=bool(new) and new[-1] in ends)


def _streamer(tokenizer: Any, on_text: OnText) -> Any:  # noqa: ANN401 - a class of transformers
    from transformers import TextStreamer  # noqa: PLC0415 - whoever has a model has it

    class Heard(TextStreamer):  # type: ignore[misc]  # untyped
        """Hands words on instead of printing them."""

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
            if text:
                on_text(text)

    return Heard(tokenizer, skip_prompt=True, skip_special_tokens=True)
