"""The byte-level GPT and its text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer_backend.errors import UsageError
from trainer_backend.kinds import LanguageModelData, LanguageModelTask
from trainer_backend.tasks.language_model import GPT, Contexts, LanguageModel, split_texts

SMALL = LanguageModelTask(context_length=8, layers=2, width=16, heads=2)


def test_a_model_sees_no_byte_that_comes_later() -> None:
    """Changing the last byte changes only the last place's logits."""
    torch.manual_seed(0)
    model = GPT(SMALL).eval()
    text = torch.randint(256, (2, 8))
    other = text.clone()
    other[:, -1] = (other[:, -1] + 1) % 256
    one, two = model(text), model(other)
    assert torch.equal(one[:, :-1], two[:, :-1])
    assert not torch.equal(one[:, -1], two[:, -1])


def test_an_untrained_model_guesses_evenly() -> None:
    """Its loss is ln 256 a byte, about."""
    torch.manual_seed(0)
    task = LanguageModel(SMALL, LanguageModelData(), folder=Path())
    batch = torch.randint(256, (16, 9), dtype=torch.uint8)
    term = task.loss(task.model(), batch)
    assert term.weight == 128 == task.weights(batch)["loss"]
    assert term.total.item() / 128 == pytest.approx(5.545, abs=0.1)
    assert term.total.dtype == torch.float32


def test_samples_weigh_alike_where_that_is_asked() -> None:
    """The sum of each sample's mean over the number of samples: the same mean, another weight."""
    torch.manual_seed(0)
    batch = torch.randint(256, (4, 9), dtype=torch.uint8)
    by_token = LanguageModel(SMALL, LanguageModelData(), folder=Path())
    by_sample = LanguageModel(SMALL, LanguageModelData(), folder=Path(), normalization="samples")
    model = by_token.model()
    one, other = by_token.loss(model, batch), by_sample.loss(model, batch)
    assert one.total.item() / float(one.weight) == pytest.approx(other.total.item() / float(other.weight))
    assert (other.weight, by_sample.loss_unit, by_token.loss_unit) == (4, "sample", "token")


@pytest.mark.parametrize("size", [9, 16, 17, 18, 100])
def test_samples_cover_the_text_without_overlap_of_targets(size: int) -> None:
    """Sample i predicts bytes 8i + 1 … 8i + 8."""
    contexts = Contexts(bytearray(range(size)), 8)
    targets = [byte for index in range(len(contexts)) for byte in contexts[index][1:].tolist()]
    assert targets == list(range(1, 8 * ((size - 1) // 8) + 1))


def test_activation_checkpointing_changes_no_gradient() -> None:
    """Dropout included: it is drawn the same in the recomputation."""
    gradients = []
    for recompute in (False, True):
        sizes = LanguageModelTask(
            context_length=8, layers=2, width=16, heads=2, dropout=0.2, activation_checkpointing=recompute
        )
        torch.manual_seed(3)
        task = LanguageModel(sizes, LanguageModelData(), folder=Path())
        model = task.model().double()
        torch.manual_seed(4)
        term = task.loss(model, torch.arange(18, dtype=torch.uint8).view(2, 9))
        term.total.backward()  # type: ignore[no-untyped-call]
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert gradients[0]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_files_are_held_out_whole_and_the_same_each_time(tmp_path: Path) -> None:
    """No file is in both parts, none is lost, and the share is about what was asked for."""
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_bytes(bytes([65 + number]) * 50)
    data = LanguageModelData(path="text", validation_fraction=0.25)
    train, validation = split_texts(tmp_path, data)
    assert (train, validation) == split_texts(tmp_path, data)
    letters, held_out = set(train) - {0}, set(validation) - {0}
    assert letters.isdisjoint(held_out)
    assert len(letters | held_out) == 20
    assert len(held_out) == 5


def test_one_file_alone_is_split_near_its_end(tmp_path: Path) -> None:
    """The last part is held out."""
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(100)))
    train, validation = split_texts(path, LanguageModelData(path="a.txt", validation_fraction=0.1))
    assert (len(train), validation[0]) == (90, 90)


def test_a_sample_knows_the_file_and_line_it_begins_in(tmp_path: Path) -> None:
    """Also the first of a later file, and one that begins in the middle of a line."""
    (tmp_path / "a.txt").write_bytes(b"0123\n567")
    (tmp_path / "b.txt").write_bytes(b"9\n1\n3456789")
    train, validation = split_texts(tmp_path, LanguageModelData(path=".", validation_fraction=0))
    contexts = Contexts(train, 3)
    assert len(validation) == 0
    assert train == b"0123\n567\x009\n1\n3456789"
    sources = [contexts.source(index) for index in range(len(contexts))]
    assert sources == ["a.txt:1", "a.txt:1", "a.txt:2", "b.txt:1", "b.txt:2", "b.txt:3"]
    assert Contexts(bytearray(20), 3).source(1) == ""


@pytest.mark.parametrize("files", [1, 3])
def test_a_fraction_of_nothing_is_no_validation(tmp_path: Path, files: int) -> None:
    """Every byte is trained on."""
    for number in range(files):
        (tmp_path / f"{number}.txt").write_text("x" * 90, encoding="utf-8")
    data = LanguageModelData(path=".", validation_fraction=0)
    found = LanguageModel(SMALL, data, folder=tmp_path).datasets()
    assert found.validation is None
    assert len(found.train) * 8 >= 90 * files - 8


def test_the_standard_library_is_megabytes_without_tests(tmp_path: Path) -> None:
    """Every machine has it."""
    train, validation = split_texts(None, LanguageModelData())
    assert len(train) > 4_000_000
    assert 0.03 < len(validation) / (len(train) + len(validation)) < 0.1


def test_a_pattern_that_matches_nothing_is_a_sentence(tmp_path: Path) -> None:
    """With the pattern in it."""
    (tmp_path / "a.bin").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"data\.pattern = \*\.txt"):
        split_texts(tmp_path, LanguageModelData(path="here", pattern="*.txt"))
