"""Recipes from what people have: configurations of other trainers, with an account of every key."""

from gradacc_gui.importing.account import Imported, KeyOutcome
from gradacc_gui.importing.detection import FORMATS, import_config

__all__ = ["FORMATS", "Imported", "KeyOutcome", "import_config"]
