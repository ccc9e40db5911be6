"""Tokens of a text of which spans are learnt: what is before a span is tokenised as the prompt of use."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from trainer_backend.tasks.causal_lm.answers import Row, Specials
from trainer_backend.tasks.causal_lm.turns import Unfit

PROVEN_BY: Final = 64
"""Rows whose ids are found both ways: from the text's beginning, and behind its last cut."""
SHORT_CHARACTERS: Final = 48
"""Texts up to this long are often the same, such as what opens an answer; their ids are kept."""


class _Begun:
    """One text, whose ids are asked for up to places further and further on.

    A tokenizer takes what lies between added tokens apart from the rest. So ids up to such a token stay as
    they are when the text grows, and only what is behind it is tokenised again.
    """

    def __init__(self, ids: Callable[[str], list[int]], text: str, cuts: Iterable[re.Match[str]]) -> None:
        self.text = text
        self._ids_of, self._cuts = ids, list(cuts)[::-1]
        self._at = 0
        self._ids: list[int] = []

    def ids_until(self, end: int) -> list[int]:
        """Ids of the text's beginning."""
        at = self._at
        while self._cuts and self._cuts[-1].end() <= end:
            at = self._cuts.pop().start()
        if at > self._at:
            self._ids += self._ids_of(self.text[self._at : at])
            self._at = at
        return self._ids + self._ids_of(self.text[at:end])


def _cuts_of(tokenizer: Any) -> re.Pattern[str] | None:  # noqa: ANN401 - a fast tokenizer
    """Tokens before which a text may be cut; None where one of them looks at what is beside it."""
    raw = [token for token in tokenizer.added_tokens_decoder.values() if not token.normalized]
    if not raw or any(token.lstrip or token.single_word for token in raw):
        return None
    longest_first = sorted((token.content for token in raw), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


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
        self._cuts = _cuts_of(tokenizer) if self._is_fast else None
        self._unproven = PROVEN_BY
        self._short_ids = functools.lru_cache(maxsize=1024)(self._ids_of)

    def ids(self, text: str) -> list[int]:
        """Ids of a text; nothing is added."""
        return list(self._short_ids(text) if len(text) <= SHORT_CHARACTERS else self._ids_of(text))

    def _ids_of(self, text: str) -> Sequence[int]:
        if self._backend is not None:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        found: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    def learnt(self, row: Row) -> tuple[list[int], list[bool]]:
        """Ids of a row, and whether each is learnt. Raises Unfit."""
        if self._cuts is None:
            return self._learnt(row, _Begun(self.ids, row.text, ()))
        found = self._learnt(row, _Begun(self.ids, row.text, tuple(self._cuts.finditer(row.text))))
        if self._unproven:
            self._unproven -= 1
            known = self._learnt(row, _Begun(self.ids, row.text, ()))
            if known != found:
                self._cuts = None
                return known
        return found

    def _learnt(self, row: Row, begun: _Begun) -> tuple[list[int], list[bool]]:
        ids, mask, at = list[int](), list[bool](), 0
        for begin, end in row.spans:
            # A token that would reach over a boundary is cut there.
            ids, mask = self._grown(begun, ids, mask, at, begin, learnt=False)
            ids, mask = self._grown(begun, ids, mask, begin, end, learnt=True)
            at = end
        return ids, mask

    def _grown(
        self, begun: _Begun, ids: list[int], mask: list[bool], begin: int, end: int, *, learnt: bool
    ) -> tuple[list[int], list[bool]]:
        if end <= begin:
            return ids, mask
        whole = begun.ids_until(end)
        if whole[: len(ids)] == ids:
            more = whole[len(ids) :]
        elif not self._is_fast:
            raise Unfit(
                "the tokenizer joins the prompt's last token with the answer's first, and cannot be cut"
            )
        else:
            more = self._tail(begun.text, begin, end)
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
