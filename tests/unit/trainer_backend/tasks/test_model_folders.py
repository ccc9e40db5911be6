"""Model folders as people have them: each that cannot be used is one sentence, and none runs code unasked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.language_models import Shape, write_json_lines, write_model, write_tokenizer
from trainer_backend.errors import UsageError
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.tasks.causal_lm import CausalLM
from trainer_backend.tasks.causal_lm.head import scores_in_chunks

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_activation_checkpointing.*:FutureWarning"
)  # peft's own call


class Opener:
    """What a pickle may do when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def make(
    folder: Path, shape: Shape = "llama", *, warned: list[Any] | None = None, **options: Any
) -> CausalLM:
    """The task on `folder / "model"`, which is written where it is not there."""
    if not (folder / "model").exists():
        write_model(folder / "model", shape)
    write_json_lines(folder / "data.jsonl", [{"text": "this is a text"}] * 4)
    said = [] if warned is None else warned
    settings: dict[str, Any] = {"model": "model", "method": "full", "max_length": 32} | options
    return CausalLM(
        CausalLMTask(**settings),
        CausalLMData(path="data.jsonl"),
        folder=folder,
        warn=lambda code, values: said.append((code, values)),
    )


def configure(folder: Path, **changes: Any) -> None:
    """Change the model's config.json; None takes a key out."""
    path = folder / "model" / "config.json"
    config = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}), "utf-8")


def refused(folder: Path, **options: Any) -> str:
    """The one sentence (or two) that making the task and its model ends in."""
    with pytest.raises(UsageError) as caught:
        make(folder, **options).model()
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 400
    return said


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    """And a folder with an adapter alone is told apart."""
    write_model(tmp_path / "model")
    (tmp_path / "model" / "config.json").unlink()
    assert "has no config.json" in refused(tmp_path)
    (tmp_path / "model" / "adapter_config.json").write_text("{}", "utf-8")
    assert "It holds an adapter" in refused(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_config_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    """By its path."""
    write_model(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(text, "utf-8")
    assert "config.json" in refused(tmp_path)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    """With the version that does not know it."""
    write_model(tmp_path / "model")
    configure(tmp_path, model_type="quillon", architectures=["QuillonForCausalLM"])
    assert "does not know the architecture quillon" in refused(tmp_path)


def test_a_model_that_continues_no_text_is_named(tmp_path: Path) -> None:
    """An encoder and decoder, say."""
    write_model(tmp_path / "model")
    configure(tmp_path, model_type="t5", architectures=["T5ForConditionalGeneration"])
    assert "T5 is not a causal language model" in refused(tmp_path)


def test_a_model_whose_tokens_see_later_ones_is_refused(tmp_path: Path) -> None:
    """An encoder with a head that transformers offers as a causal one."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": write_tokenizer(tmp_path / "model", ["this is a text"]),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    transformers.BertLMHeadModel(transformers.BertConfig(**sizes)).save_pretrained(tmp_path / "model")
    assert "see later ones" in refused(tmp_path)
    configure(tmp_path, is_decoder=True)
    make(tmp_path).model()


def test_code_of_the_model_s_own_is_not_run_unasked(tmp_path: Path) -> None:
    """It is run when asked, and only then."""
    write_model(tmp_path / "model")
    trace = tmp_path / "was-run"
    code = f"import os\nos.mkdir({str(trace)!r})\nraise ImportError('run')\n"
    (tmp_path / "model" / "configuration_quillon.py").write_text(code, "utf-8")
    configure(tmp_path, model_type="quillon", auto_map={"AutoConfig": "configuration_quillon.QuillonConfig"})
    said = refused(tmp_path)
    assert "configuration_quillon.py" in said
    assert "task.trust_remote_code = true" in said
    assert not trace.exists()


def as_pickle(folder: Path, content: Any) -> None:
    """Replace the weights by a pickle."""
    (folder / "model" / "model.safetensors").unlink()
    torch.save(content, folder / "model" / "pytorch_model.bin")


def test_a_pickle_of_weights_is_read_as_weights(tmp_path: Path) -> None:
    """Nothing in it is run; the model is the same."""
    weights = make(tmp_path).model().state_dict()
    as_pickle(tmp_path, weights)
    again = make(tmp_path).model().state_dict()
    assert all(torch.equal(again[name], value) for name, value in weights.items())


def test_a_pickle_with_more_than_weights_is_not_opened(tmp_path: Path) -> None:
    """What it would have done is not done."""
    write_model(tmp_path / "model")
    as_pickle(tmp_path, {"lm_head.weight": Opener(tmp_path / "was-run")})
    assert "pickle" in refused(tmp_path)
    assert not (tmp_path / "was-run").exists()


def test_shards_are_loaded_and_a_missing_one_is_said(tmp_path: Path) -> None:
    """Weights in several files."""
    model: Any = make(tmp_path).model()
    (tmp_path / "model" / "model.safetensors").unlink()
    model.save_pretrained(tmp_path / "model", max_shard_size="40KB")
    shards = sorted((tmp_path / "model").glob("model-*.safetensors"))
    assert len(shards) > 1
    again = make(tmp_path).model().state_dict()
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())
    shards[0].unlink()
    assert shards[0].name in refused(tmp_path)


def test_weights_that_are_not_in_the_files_are_said(tmp_path: Path) -> None:
    """A body without its head: the head starts at random."""
    import safetensors.torch

    write_model(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    del weights["lm_head.weight"]
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})
    warned: list[Any] = []
    make(tmp_path, warned=warned).model()
    assert ("weights-missing", {"model": "model", "count": 1, "first": "lm_head.weight"}) in warned


def test_a_model_without_sdpa_takes_eager_and_says_so(tmp_path: Path) -> None:
    """Only where sdpa was asked for, and it is the default."""
    warned: list[Any] = []
    model: Any = make(tmp_path, "gemma2", warned=warned).model()
    assert model.config._attn_implementation == "eager"
    assert warned == [("attention-eager", {"model": "model"})]


def test_flash_attention_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    """With what to set instead."""
    assert 'task.attention = "sdpa"' in refused(tmp_path, attention="flash_attention_2")


def adapted(model: torch.nn.Module) -> set[str]:
    """Names of layers with adapters."""
    ends = (name.partition("model.model.model.")[2] for name, _ in model.named_modules())
    return {end.removesuffix(".lora_A") for end in ends if end.endswith(".lora_A")}


def test_a_target_may_be_a_regular_expression(tmp_path: Path) -> None:
    """It must match a whole name, as peft reads them."""
    task = make(tmp_path, method="lora", lora_targets=(r".*layers\.1\..*(q|v)_proj", "down_proj"))
    assert adapted(task.model()) == {
        "layers.0.mlp.down_proj", "layers.1.mlp.down_proj",
        "layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lora_targets": (r"(q|v",)}, "is not a regular expression"),
        ({"lora_targets": (r".*\.(wq|wk)",)}, "matches no module of model"),
        ({"modules_to_save": ("lm_haed",)}, "Did you mean lm_head?"),
    ],
)
def test_names_that_match_nothing_are_a_sentence(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    """With the nearest name."""
    write_model(tmp_path / "model")
    with pytest.raises(UsageError) as caught:
        make(tmp_path, method="lora", **options).model()
    assert words in str(caught.value)


@pytest.mark.parametrize("shape", ["llama", "gemma2"])
def test_modules_trained_whole_are_trained_and_saved(tmp_path: Path, shape: Shape) -> None:
    """The embedding and the head beside the adapters, shared or not; the loss stays chunked."""
    import peft
    import transformers

    task = make(tmp_path, shape, method="lora", modules_to_save=("embed_tokens", "lm_head"), loss="chunked",
                attention="eager")  # fmt: skip
    model: Any = task.model()
    assert scores_in_chunks(model)
    train = task.datasets().train
    (term,) = task.loss(model, task.collate([train[0]]))
    term.total.backward()  # type: ignore[no-untyped-call]
    whole = {
        name for name, value in model.named_parameters() if value.grad is not None and "lora" not in name
    }
    assert whole
    assert all("modules_to_save" in name for name in whole)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name in whole:
                value.add_(0.5)
    tokens = torch.arange(6)[None]
    expected = model.eval()(input_ids=tokens).logits
    (saved,) = task.export(model, tmp_path / "out")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    again = peft.PeftModel.from_pretrained(base, saved)
    torch.testing.assert_close(again(input_ids=tokens).logits, expected)


@pytest.mark.parametrize("shape", ["llama", "gpt2"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_added_tokens_have_rows_that_are_trained(tmp_path: Path, shape: Shape, method: str) -> None:
    """Also beside adapters, where the other rows stay as they are; with a head of its own or a shared one."""
    task = make(tmp_path, shape, method=method, added_tokens=("<call>", "</call>"))
    number = task.tokenizer.convert_tokens_to_ids("<call>")
    assert task.tokenizer.encode("<call>") == [number]
    model: Any = task.model()
    embedding = model.get_input_embeddings()
    before = embedding(torch.arange(number + 1)).detach().clone()
    assert before.shape[0] == number + 1
    train = task.datasets().train
    batch = task.collate([train[0]])
    batch.tokens[0, 1] = number
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    next(iter(task.loss(model, batch))).total.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    changed = (embedding(torch.arange(number + 1)) != before).any(-1)
    assert changed[number]
    if method == "lora":
        assert changed.sum() == 1


def test_a_tuned_tokenizer_goes_with_its_model(tmp_path: Path) -> None:
    """The adapter's folder brings the added tokens and their rows."""
    import peft
    import transformers

    task = make(tmp_path, method="lora", added_tokens=("<call>",))
    model: Any = task.model().eval()
    (saved,) = task.export(model, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    base.resize_token_embeddings(len(tokenizer))
    tokens = torch.tensor([tokenizer.encode("this <call> is")])
    again = peft.PeftModel.from_pretrained(base, saved)
    inputs = again.get_input_embeddings()(tokens)
    torch.testing.assert_close(inputs, model.get_input_embeddings()(tokens))
