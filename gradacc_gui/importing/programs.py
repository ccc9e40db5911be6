"""Which program a file belongs to, and its import."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gradacc_gui.importing.accelerate_import import ACCELERATE
from gradacc_gui.importing.account import Imported, one_line
from gradacc_gui.importing.axolotl_import import AXOLOTL
from gradacc_gui.importing.config_files import read_config
from gradacc_gui.importing.deepspeed_import import DEEPSPEED
from gradacc_gui.importing.key_reading import KeyReading, Program
from gradacc_gui.importing.llama_factory_import import LLAMA_FACTORY
from gradacc_gui.importing.llama_factory_v1_import import LLAMA_FACTORY_V1
from gradacc_gui.importing.sft_import import SFT
from gradacc_gui.importing.trainer_import import TRAINER
from trainer_backend.errors import UsageError

PROGRAMS: Final = (TRAINER, SFT, LLAMA_FACTORY, LLAMA_FACTORY_V1, AXOLOTL, ACCELERATE, DEEPSPEED)
"""Where two know as many keys of a file, the one with more signs, then the earlier counts."""


LEAST_KNOWN: Final = 1 / 3
"""Of a file's keys: one word in common, as "template", makes no configuration of a program."""


def program_of(given: dict[str, Any]) -> Program | None:
    """The program that knows most of a file's keys, of those with a sign in it."""
    keys = given.keys()
    found = [
        program
        for program in PROGRAMS
        if program.signs & keys and len(program.rows.keys() & keys) >= LEAST_KNOWN * len(keys)
    ]
    return max(
        found,
        key=lambda program: (len(program.rows.keys() & keys), len(program.signs & keys)),
        default=None,
    )


def import_config(path: Path) -> Imported:
    """A recipe from a JSON or YAML file of another program. Raises UsageError."""
    given = read_config(path)
    program = program_of(given)
    if program is None:
        names = ", ".join(program.name for program in PROGRAMS)
        has = ", ".join(one_line(key) for key in list(given)[:5]) or "no keys"
        message = f"{path} is none of the formats known here ({names}). It has {has}."
        raise UsageError(message)
    return import_keys(program, given)


def import_keys(program: Program, given: dict[str, Any]) -> Imported:
    """A recipe from the keys of a program's file. Raises UsageError."""
    reading = KeyReading(program.name, program.rows, dict(given))
    reading.refuse_what_is_not_trained()
    for reader in program.readers:
        reader(reading)
    return reading.finish()
