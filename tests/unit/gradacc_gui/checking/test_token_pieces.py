"""A row as pieces: nothing is lost, special tokens stand alone, long stretches are cut in their middle."""

from __future__ import annotations

from gradacc_gui.checking.token_pieces import LONGEST_PROMPT, learnt_count, pieces_of, strip_of
from trainer_backend.preflight.findings import TokenRow


def row(prompt: int, answer: int, **changed: object) -> TokenRow:
    """A special token, a prompt and an answer of so many words, and an end."""
    texts = ("<s>", *(" ask",) * prompt, *(" say",) * answer, "</s>")
    weights = (0.0,) * (1 + prompt) + (1.0,) * (answer + 1)
    given = {"source": "a:1", "texts": texts, "weights": weights, "special": (0, len(texts) - 1)} | changed
    return TokenRow(**given)  # type: ignore[arg-type]


def test_a_short_row_is_shown_whole() -> None:
    """One piece a token, each with its place and weight."""
    given = row(3, 2)
    pieces = pieces_of(given, shortened=True)
    assert [piece.text for piece in pieces] == list(given.texts)
    assert [piece.kind for piece in pieces] == ["special", *["text"] * 5, "special"]
    assert [piece.is_learnt for piece in pieces] == [False] * 4 + [True] * 3
    assert learnt_count(given) == 3


def test_a_long_prompt_gets_a_gap_that_counts_what_it_hides() -> None:
    """Its beginning and its end stay, and so does the whole answer."""
    given = row(100, 2)
    pieces = pieces_of(given, shortened=True)
    (gap,) = [piece for piece in pieces if piece.kind == "gap"]
    assert sum(piece.count for piece in pieces) == len(given.texts)
    shown = sum(len(piece.text) for piece in pieces if piece.text == " ask")
    assert shown <= LONGEST_PROMPT
    assert not gap.is_learnt
    assert pieces[-3:] == pieces_of(row(100, 2), shortened=False)[-3:]
    assert [piece.count for piece in pieces_of(given, shortened=False)] == [1] * len(given.texts)


def test_a_stretch_is_never_cut_over_the_border_of_what_is_learnt() -> None:
    """Prompt and answer have gaps of their own."""
    gaps = [piece for piece in pieces_of(row(200, 400), shortened=True) if piece.kind == "gap"]
    assert [gap.is_learnt for gap in gaps] == [False, True]


def test_a_strip_tells_where_the_loss_lies() -> None:
    """Ids beyond the embedding are a part of their own."""
    given = row(3, 2, outside=(5,))
    assert [(part.begin, part.end, part.kind) for part in strip_of(given)] == [
        (0, 4, "prompt"),
        (4, 5, "learnt"),
        (5, 6, "outside"),
        (6, 7, "learnt"),
    ]
    outside = [piece for piece in pieces_of(given, shortened=True) if piece.outside]
    assert [piece.place for piece in outside] == [5]
    assert outside[0].kind == "special"
