"""Configurations of other programs, each with what it means to its own program: pairs for the importer."""

from tests.support.imports.cited_pairs import axolotl_pairs, deepspeed_pairs, factory_pairs, factory_v1_pairs
from tests.support.imports.pairs import Pair
from tests.support.imports.trainer_pairs import trainer_pairs
from tests.support.imports.trl_pairs import accelerate_pairs, trl_pairs


def all_pairs() -> list[Pair]:
    """Those of every program."""
    makers = (
        trainer_pairs,
        trl_pairs,
        accelerate_pairs,
        factory_pairs,
        factory_v1_pairs,
        axolotl_pairs,
        deepspeed_pairs,
    )
    return [pair for maker in makers for pair in maker()]
