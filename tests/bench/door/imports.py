"""Configurations of other programs against what they mean there: one pair of a file and its meaning each.

imports_exact    pairs in which every key of the recipe, what is asked for, what is left out and the learning
                 rate of each step are right; the meaning is that of the program's own class where it is
                 installed (transformers, TRL, accelerate), else of its source, by file and line
imports_pairs    how many there are
imports_wrong    the others, by name, with what differs
"""

from __future__ import annotations

import json
import warnings

from tests.support.imports import all_pairs
from tests.support.imports.pairs import differences


def main() -> None:
    """Import each file, and compare."""
    warnings.simplefilter("ignore")  # of the programs' own classes, about what this machine lacks
    pairs = all_pairs()
    wrong = {pair.name: found for pair in pairs if (found := differences(pair))}
    print(
        json.dumps(
            {
                "imports_exact": len(pairs) - len(wrong),
                "imports_pairs": len(pairs),
                "imports_wrong": wrong,
            }
        )
    )


if __name__ == "__main__":
    main()
