"""Tokens of a text of which spans are learnt: what is before a span is tokenised as the prompt of use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer_backend.tasks.causal_lm.answers import Row, Specials
from trainer_backend.tasks.causal_lm.turns import Unfit


class Tokens:
    """One tokenizer, asked for ids of texts that bring their own special tokens."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - any tokenizer class
        self._tokenizer = tokenizer
        self._is_fast = bool(getattr(tokenizer, "is_fast", False))
        # Asked without the library's layer around it, which takes longer than the tokens of a short text.
        self._backend = tokenizer.backend_tokenizer if self._is_fast else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()

    def ids(self, text: str) -> list[int]:
        """Ids of a text; nothing is added."""
        if self._backend is not None:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        found: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    def learnt(self, row: Row) -> tuple[list[int], list[bool]]:
        """Ids of a row, and whether each is learnt. Raises Unfit."""
        ids, mask, at = list[int](), list[bool](), 0
        for begin, end in row.spans:
            # A token that would reach over a boundary is cut there.
            ids, mask = self._grown(row.text, ids, mask, at, begin, learnt=False)
            ids, mask = self._grown(row.text, ids, mask, begin, end, learnt=True)
            at = end
        return ids, mask

    def _grown(
        self, text: str, ids: list[int], mask: list[bool], begin: int, end: int, *, learnt: bool
    ) -> tuple[list[int], list[bool]]:
        if end <= begin:
            return ids, mask
        whole = self.ids(text[:end])
        if whole[: len(ids)] == ids:
            more = whole[len(ids) :]
        elif not self._is_fast:
            raise Unfit(
                "the tokenizer joins the prompt's last token with the answer's first, and cannot be cut"
            )
        else:
            more = self._tail(text, begin, end)
        return ids + more, mask + [learnt] * len(more)

    def _tail(self, text: str, begin: int, end: int) -> list[int]:
        """Ids of a part by itself; some tokenizers put a space before the first word of a text."""
        part = text[begin:end]
        for anchor in self._anchors():
            found = self._tokenizer(
                anchor + part, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            offsets: Sequence[tuple[int, int]] = found["offset_mapping"]
            first = next(
                (place for place, (_, behind) in enumerate(offsets) if behind > len(anchor)), len(offsets)
            )
            # trim_offsets hides leading space, so the anchor's own ids are compared too.
            alone = self.ids(anchor)
            if first == len(alone) and found["input_ids"][:first] == alone:
                tail: list[int] = found["input_ids"][first:]
                return tail
        return self.ids(part)

    def _anchors(self) -> list[str]:
        tokens = (self._tokenizer.eos_token, self._tokenizer.bos_token, "\n", "a")
        return [token for token in tokens if token]


def specials_of(tokenizer: Any) -> Specials:  # noqa: ANN401 - any tokenizer class
    """Every token that a text is cut at, whatever surrounds it."""
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special = [str(token) for token in added.values() if getattr(token, "special", False)]
    return Specials.of(
        (*map(str, tokenizer.all_special_tokens), *special),
        map(str, added.values()),
        str(tokenizer.eos_token or ""),
    )
