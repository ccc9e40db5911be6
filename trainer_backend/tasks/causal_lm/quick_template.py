"""A chat template rendered without the library's layer around it, which takes twice as long as the template.

That layer makes plain tables of messages and gives reasoning several names. Messages that are plain already
and have no reasoning come out alike without it; the first ones are rendered both ways to prove it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from trainer_backend.tasks.causal_lm.turns import REASONING_KEYS

PROVEN_BY: Final = 64
"""Conversations that are rendered both ways."""


class QuickTemplate:
    """One tokenizer's template, compiled once."""

    def __init__(self, tokenizer: Any, chosen: str | None) -> None:  # noqa: ANN401 - any tokenizer class
        self._tokenizer, self._chosen = tokenizer, chosen
        self._unproven = PROVEN_BY

    def takes(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> bool:
        """Whether messages can be rendered here: nothing in them that the library would rewrite."""
        if tools or not messages or self._compiled is None:
            return False
        return not any(key in message for message in messages for key in REASONING_KEYS)

    @functools.cached_property
    def _compiled(self) -> Any:  # noqa: ANN401 - a jinja2 Template, or None
        """None where the tokenizer renders in a way of its own."""
        import transformers  # noqa: PLC0415 - whoever has a tokenizer has it
        from transformers.utils import chat_template_utils  # noqa: PLC0415

        own = transformers.PreTrainedTokenizerBase.apply_chat_template
        compiled = getattr(chat_template_utils, "_compile_jinja_template", None)
        if compiled is None or getattr(type(self._tokenizer), "apply_chat_template", None) is not own:
            return None
        return compiled(self._tokenizer.get_chat_template(self._chosen, None))

    @functools.cached_property
    def _special(self) -> dict[str, str]:
        return dict(self._tokenizer.special_tokens_map)

    def render(self, messages: Sequence[dict[str, Any]], **options: bool) -> str:
        """What the template writes. Raises what the template raises."""
        plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
        values = {**self._special, **options}
        if not self._unproven:
            text: str = self._compiled.render(messages=plain, tools=None, documents=None, **values)
            return text
        known: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, chat_template=self._chosen, **options
        )
        self._unproven -= 1
        if self._compiled.render(messages=plain, tools=None, documents=None, **values) != known:
            self._compiled = None
        return known
