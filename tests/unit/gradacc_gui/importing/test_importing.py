"""Other trainers' configurations become recipes, with every key accounted for."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradacc_gui.importing.account import Imported
from gradacc_gui.importing.deepspeed_import import batch_equation
from gradacc_gui.importing.key_reading import Program
from gradacc_gui.importing.programs import PROGRAMS, import_config, import_keys
from trainer_backend.config import RunConfig
from trainer_backend.config_check import check
from trainer_backend.errors import UsageError

AXOLOTL = """
base_model: my/model
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 3
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
warmup_steps: 10
val_set_size: 0.05
datasets:
  - path: data.jsonl
    type: chat_template
flash_attention: true
"""
LLAMA_FACTORY = """
model_name_or_path: my/model
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: mine
template: llama3
cutoff_len: 2048
output_dir: saves
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
val_size: 0.1
eval_strategy: steps
eval_steps: 500
"""
TRAINING_ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 16,
    "max_steps": 500,
    "warmup_ratio": 0.04,
    "learning_rate": 3e-4,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "max_grad_norm": 0.5,
    "lr_scheduler_type": "linear",
    "fp16": True,
    "save_strategy": "steps",
    "save_steps": 100,
    "save_total_limit": 2,
    "optim": "adamw_torch_fused",
    "seed": 42,
}
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95], "weight_decay": 0.01}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
}


def read(tmp_path: Path, content: str | dict[str, Any]) -> Imported:
    """Import from a file of the fitting suffix."""
    path = tmp_path / ("given.json" if isinstance(content, dict) else "given.yaml")
    path.write_text(json.dumps(content) if isinstance(content, dict) else content, encoding="utf-8")
    return import_config(path)


def config_of(imported: Imported, **more: Any) -> RunConfig:
    """The imported recipe, with what the file could not say."""
    tables = tomllib.loads(imported.recipe_text())
    for key, value in more.items():
        table, _, name = key.partition("__")
        tables.setdefault(table, {})[name] = value
    config = check(tables)
    assert isinstance(config, RunConfig), config
    return config


def test_axolotl_comes_over_whole(tmp_path: Path) -> None:
    """Model, adapters, layout, batch, schedule in samples."""
    imported = read(tmp_path, AXOLOTL)
    config = config_of(imported)
    assert imported.source == "Axolotl"
    task: Any = config.task
    assert (task.model, task.method, task.lora_rank, task.layout) == ("my/model", "qlora", 32, "packing")
    assert (config.effective_batch, config.schedule.warmup_samples, config.run.epochs) == (8, 80, 3)
    assert (config.optimizer.name, task.attention) == ("adamw-8bit", "flash_attention_2")
    assert imported.of("changes-the-run") == ()


def test_llama_factory_needs_only_the_data(tmp_path: Path) -> None:
    """Its data set is a name in a file of its own; the rest is there."""
    imported = read(tmp_path, LLAMA_FACTORY)
    config = config_of(imported, data__path="mine.jsonl")
    task: Any = config.task
    assert imported.source == "LLaMA-Factory"
    assert (task.method, task.lora_targets, task.max_length) == ("lora", (), 2048)
    assert (config.effective_batch, config.run.precision) == (8, "bf16")
    assert config.evaluation.every_samples == 4000


def test_training_arguments_count_in_samples(tmp_path: Path) -> None:
    """Steps x effective batch of 64."""
    config = config_of(read(tmp_path, TRAINING_ARGUMENTS), task__model="m", data__path="d.jsonl")
    assert (config.effective_batch, config.run.max_optimizer_steps) == (64, 500)
    assert config.schedule.warmup_ratio == 0.04
    assert config.checkpoint.every_samples == 6400
    assert config.optimizer.betas == (0.9, 0.95)
    assert (config.schedule.kind, config.schedule.final_ratio) == ("linear", 0.0)


def test_deepspeed_on_two_devices_keeps_the_effective_batch_on_one(tmp_path: Path) -> None:
    """4 x 8 x 2 = 64 becomes 4 x 16."""
    imported = read(tmp_path, DEEPSPEED)
    config = config_of(imported, task__model="m", data__path="d.jsonl")
    assert (config.accumulation_steps, config.effective_batch) == (16, 64)
    assert (config.schedule.warmup_samples, config.run.max_optimizer_steps) == (640, 100)
    assert "4 x 8 x 2 = 64, checked" in {line.note for line in imported.lines}


def test_accelerate_brings_precision_and_n(tmp_path: Path) -> None:
    """The rest is about launching."""
    imported = read(
        tmp_path,
        "compute_environment: LOCAL_MACHINE\nnum_processes: 2\nmixed_precision: bf16\n"
        "gradient_accumulation_steps: 4\nmachine_rank: 0\n",
    )
    assert imported.tables["accumulation"]["gradient_accumulation_steps"] == 8
    assert imported.tables["run"]["precision"] == "bf16"


@pytest.mark.parametrize(
    ("total", "micro", "steps", "expected"),
    [
        (64, 4, 8, (4, 8, 2)),
        (32, 4, None, (4, 8, 1)),
        (32, None, 8, (4, 8, 1)),
        (32, None, None, (32, 1, 1)),
        (None, 2, 3, (2, 3, 1)),
    ],
)
def test_the_batch_equation_is_solved(
    total: Any, micro: Any, steps: Any, expected: tuple[int, int, int]
) -> None:
    """Total = micro x N x world."""
    assert batch_equation(total, micro, steps) == expected


@pytest.mark.parametrize(
    ("total", "micro", "steps"), [(64, 4, 7), (33, 4, None), (32, 0, 1), (32, "4", 8), (1.5, 1, 1)]
)
def test_a_batch_equation_that_does_not_hold_is_a_sentence(total: Any, micro: Any, steps: Any) -> None:
    """DeepSpeed's own check, with the numbers in it."""
    with pytest.raises(UsageError, match=r"[Cc]orrect"):
        batch_equation(total, micro, steps)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "neither JSON nor YAML"),
        ("just words", "no keys and values"),
        ("x: 1", "none of the formats"),
    ],
)
def test_a_file_that_is_none_is_a_sentence(tmp_path: Path, content: str, words: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(UsageError, match=words):
        read(tmp_path, content)


def test_every_key_of_a_file_is_in_the_account(tmp_path: Path) -> None:
    """Taken, translated or left out; none vanishes."""
    for content in (AXOLOTL, LLAMA_FACTORY, TRAINING_ARGUMENTS, DEEPSPEED):
        keys = set(content if isinstance(content, dict) else yaml.safe_load(content))
        assert {line.key for line in read(tmp_path, content).lines} == keys


atoms = (
    st.none()
    | st.booleans()
    | st.integers(-5, 10**6)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["auto", "steps", "epoch", "cosine", "lora", "1e-4", "no", "\x1b[2J", "WarmupDecayLR"])
)
INNER = ["path", "type", "weight", "enabled", "params", "lr", "betas", "min_lr_rate", "name", "r", "split"]
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(INNER), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def contents(draw: st.DrawFn) -> tuple[Program, dict[str, Any]]:
    """A program, and some of its keys with any values."""
    program = draw(st.sampled_from(PROGRAMS))
    keys = sorted(key for key, row in program.rows.items() if row.fate != "refuses")
    return program, draw(st.dictionaries(st.sampled_from(keys), values, max_size=8))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(contents())
def test_any_values_give_an_account_or_a_sentence(content: tuple[Program, dict[str, Any]]) -> None:
    """Nonsense never ends in a traceback, and what comes about is TOML and JSON."""
    program, keys = content
    try:
        imported = import_keys(program, keys)
    except UsageError:
        return
    assert {line.key.split(".")[0] for line in imported.lines} == set(keys)
    assert isinstance(check(tomllib.loads(imported.recipe_text())), RunConfig)
    json.dumps(imported.as_json(), allow_nan=False)
