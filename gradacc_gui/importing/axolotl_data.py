"""The data sets of an Axolotl configuration: where they are, what their fields are called, what is learnt."""

from __future__ import annotations

from typing import Any, Final

from gradacc_gui.importing.key_reading import KeyReading, RefusedError
from gradacc_gui.importing.key_rows import SUPERVISED_ONLY
from gradacc_gui.importing.sft_import import PACKED_ROWS
from trainer_backend.config_check import show

PREFERENCE_TYPES: Final = (
    "dpo",
    "kto",
    "orpo",
    "ipo",
    "simpo",
    "bradley_terry",
    "stepwise",
    "intel",
    "ultra",
    "argilla",
)
OWN_PROMPTS: Final = (
    "alpaca",
    "gpteacher",
    "context_qa",
    "reflection",
    "explainchoice",
    "concisechoice",
    "summarizetldr",
    "oasst",
    "jeopardy",
)
"""Types that write a text of their own around the fields."""
FIELDS: Final[dict[str, str]] = {
    "field_messages": "messages",
    "message_field_role": "role",
    "message_field_content": "content",
    "field_tools": "tools",
    "field_system": "system",
    "field_instruction": "prompt",
    "field_output": "completion",
    "field": "text",
}
"""Keys of a data set that name a field, by ours."""
WRITTEN: Final = frozenset(FIELDS) | {
    "path",
    "type",
    "split",
    "name",
    "data_files",
    "ds_type",
    "message_property_mappings",
    "roles_to_train",
    "train_on_eos",
    "chat_template",
    "trust_remote_code",
    "text_column",
    "field_input",
    "roles",
}
"""Keys of a data set that are understood."""


def read_data(reading: KeyReading) -> None:
    """Data sets, length of a row, packing, what is learnt, what is held out. Raises UsageError."""
    key = "datasets" if reading.is_used("datasets") else "pretraining_dataset"
    sets = _entries(reading, key)
    is_text = key == "pretraining_dataset" or _is_text(sets)
    if sets:
        _read_sets(reading, key, sets)
    _read_rows(reading, is_text=is_text)
    is_whole = is_text or bool(reading.flag("train_on_inputs")) or _trains_on_users(sets)
    reading.put("task.train_on", "everything" if is_whole else "answers", "train_on_inputs")
    _read_validation(reading)


def _entries(reading: KeyReading, key: str) -> list[dict[str, Any]]:
    value = reading.value(key)
    if value is None:
        return []
    if isinstance(value, (str, dict)):
        value = [value]
    if not isinstance(value, list):
        reading.wrong(key, value, "a list of data sets")
    entries = [{"path": one} if isinstance(one, str) else one for one in value]
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            reading.wrong(key, value, "a list of data sets with a path each")
    return entries


def _type_of(entry: dict[str, Any]) -> str:
    kind = entry.get("type")
    return kind.lower() if isinstance(kind, str) else ""


def _is_text(sets: list[dict[str, Any]]) -> bool:
    return bool(sets) and all(_type_of(entry) in ("completion", "pretrain") for entry in sets)


def _trains_on_users(sets: list[dict[str, Any]]) -> bool:
    roles = [entry.get("roles_to_train") for entry in sets]
    return any(isinstance(names, list) and {"user", "human"} & set(map(str, names)) for names in roles)


def _path_of(entry: dict[str, Any]) -> str:
    path, files = str(entry["path"]), entry.get("data_files")
    if isinstance(files, list) and len(files) == 1:
        files = files[0]
    if isinstance(files, str):
        return files
    subset, split = entry.get("name"), entry.get("split")
    is_hub = (
        path.count("/") == 1 and not path.startswith((".", "/", "~")) and "." not in path.rpartition("/")[2]
    )
    if not is_hub:
        return path
    path += f":{subset}" if subset else ""
    return path + (f"#{split}" if split and split != "train" else "")


def _read_sets(reading: KeyReading, key: str, sets: list[dict[str, Any]]) -> None:
    for entry in sets:
        if any(
            word in _type_of(entry).split(".") or word in _type_of(entry) for word in PREFERENCE_TYPES[:5]
        ):
            message = f"{key}: type = {show(entry['type'])} is data of preference pairs. {SUPERVISED_ONLY}"
            raise RefusedError(message)
    paths = list(dict.fromkeys(_path_of(entry) for entry in sets))
    reading.put("data.path", paths[0], key)
    left = sorted({name for entry in sets for name, value in entry.items() if value and name not in WRITTEN})
    words = []
    if len(paths) > 1:
        reading.put("data.mix", [{"path": path, "weight": 1.0} for path in paths])
        words.append(
            f"They join {len(paths)} data sets. Here an epoch draws equally from each: set the weights in"
            " data.mix by their sizes."
        )
    if left:
        words.append(f"{', '.join(left)} has no counterpart here.")
    if words:
        reading.leave(key, " ".join(words), to="data.path")
    _read_fields(reading, key, sets)
    kinds = sorted(
        {_type_of(entry) for entry in sets if _type_of(entry).split(".")[0].split("_")[0] in OWN_PROMPTS}
    )
    if kinds:
        reading.say(
            f'type: {", ".join(kinds)} puts text of its own around the fields ("### Instruction:"). Here'
            " the model's chat template is used."
        )


def _read_fields(reading: KeyReading, key: str, sets: list[dict[str, Any]]) -> None:
    """What the fields of the first data set are called."""
    entry = dict(sets[0])
    if isinstance(entry.get("type"), dict):
        entry |= entry["type"]
        if any(entry.get(name) for name in ("format", "no_input_format", "system_prompt")):
            reading.say("Their prompt has a format of its own. Here the model's chat template writes it.")
    named = {ours: entry[theirs] for theirs, ours in FIELDS.items() if isinstance(entry.get(theirs), str)}
    mapping = entry.get("message_property_mappings")
    if isinstance(mapping, dict):
        named |= {name: mapping[name] for name in ("role", "content") if isinstance(mapping.get(name), str)}
    usual = {
        "messages": {"messages", "conversations"},
        "role": {"role", "from"},
        "content": {"content", "value"},
    }
    usual |= {"tools": {"tools"}, "text": {"text"}, "system": {"system"}}
    found = {ours: name for ours, name in named.items() if name not in usual.get(ours, set())}
    if found:
        reading.put("data.fields", found, key)


def _read_rows(reading: KeyReading, *, is_text: bool) -> None:
    reading.put("task.max_length", reading.whole("sequence_len"), "sequence_len")
    strategy = str(reading.value("excess_length_strategy")).lower()
    if is_text:
        reading.put("task.long", "split", note="texts are cut into blocks")
        reading.settle("excess_length_strategy", "Texts are cut into blocks.")
    elif strategy in ("drop", "truncate"):
        reading.put("task.long", "cut" if strategy == "truncate" else "drop", "excess_length_strategy")
    else:
        reading.put("task.long", "drop")
        words = "They stop at a sample that is too long. Here it is left out and counted."
        reading.leave("excess_length_strategy", words, to="task.long")
    is_packed = bool(reading.flag("sample_packing")) or bool(reading.flag("pretraining_sample_concatenation"))
    keys = ("sample_packing", "pretraining_sample_concatenation")
    reading.put("task.layout", "packing" if is_packed else "padding", *keys)
    reading.settle("pretrain_multipack_attn", "Samples of a row never see each other here.")
    if is_packed:
        reading.say(PACKED_ROWS)


def _read_validation(reading: KeyReading) -> None:
    size = reading.number("val_set_size") or 0.0
    tests = _entries(reading, "test_datasets")
    if tests:
        reading.put("data.validation_path", _path_of(tests[0]), "test_datasets")
        reading.put("data.validation_fraction", 0.0, "val_set_size")
        if len(tests) > 1:
            words = f"They evaluate on {len(tests)} data sets. Here on the first."
            reading.leave("test_datasets", words, to="data.validation_path")
    elif size >= 1:
        why = (
            f"They hold out {size:g} samples. Here it is a share: {size:g} divided by the number of samples."
        )
        reading.ask("data.validation_fraction", why, "val_set_size", stand_in=0.05)
    else:
        reading.put("data.validation_fraction", size, "val_set_size")
