"""Recipes from what people have: configurations of other programs, with an account of every key."""

from gradacc_gui.importing.account import Imported, KeyLine, OpenKey
from gradacc_gui.importing.key_reading import RefusedError
from gradacc_gui.importing.programs import PROGRAMS, import_config, import_keys, program_of

__all__ = [
    "PROGRAMS",
    "Imported",
    "KeyLine",
    "OpenKey",
    "RefusedError",
    "import_config",
    "import_keys",
    "program_of",
]
