"""Reading text data: forms that are taken, the memory of a large file, and the time until data is open.

formats_taken                       of 14: those whose answer is learnt as it should be
read_1gb_jsonl_rss_mb_over_idle     peak resident memory of reading 1 GB of JSON lines, above that of the
                                    same process before it, in a process of its own
read_1gb_jsonl_s
open_100k_rows_s                    from a recipe to encoded data: 100,000 conversations of two turns
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.bench.figures import peak_bytes
from tests.support.door import read_text, write_door_model
from tests.support.text_forms import written_forms

BYTES: Final = 10**9
ROWS: Final = 100_000


def formats_taken(folder: Path) -> int:
    """Forms that give the answer."""
    model = write_door_model(folder, "tok_plain")
    taken = 0
    for name, path, fields in written_forms(folder):
        found = read_text(model, path, {}, {"fields": fields})
        if found.refused is None and found.learnt[0].endswith("yes<|e|>"):
            taken += 1
        else:
            print(name, found.refused, found.learnt, file=sys.stderr)
    return taken


def read_large(file: Path) -> dict[str, float]:
    """Read a file record by record, in this process."""
    from trainer_backend.kinds.causal_lm import CausalLMData
    from trainer_backend.tasks.causal_lm.forms import Reading
    from trainer_backend.tasks.causal_lm.records import find_data, sources_of

    reading = Reading(CausalLMData(path=str(file)))
    idle = peak_bytes()
    began = time.perf_counter()
    count = 0
    for name, items in sources_of(find_data(file, str(file), "data.path"), offline=True):
        count += sum(1 for _ in reading.samples(name, items))
    took_s = time.perf_counter() - began
    return {"count": count, "over_idle_mb": (peak_bytes() - idle) / 1e6, "took_s": took_s}


def write_large(file: Path) -> None:
    """Conversations of about a kilobyte each."""
    words = "a word of many, and then another " * 12
    with file.open("w", encoding="utf-8") as lines:
        written = 0
        while written < BYTES:
            talk = [
                {"role": "user", "content": f"{written} {words}"},
                {"role": "assistant", "content": words},
            ]
            written += lines.write(json.dumps({"messages": talk}) + "\n")


def open_rows(folder: Path) -> float:
    """Seconds from a recipe to its data, the model's configuration and tokenizer included."""
    model = write_door_model(folder, "tok_plain")
    file = folder / "rows.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for number in range(ROWS):
            talk = [
                {"role": "user", "content": f"what is {number} plus two?"},
                {"role": "assistant", "content": f"it is {number + 2}."},
            ]
            lines.write(json.dumps({"messages": talk}) + "\n")
    began = time.perf_counter()
    found = read_text(model, file, {}, {}, rows=1)
    took_s = time.perf_counter() - began
    assert found.samples == ROWS, found.refused
    return took_s


def main() -> None:
    """Measure."""
    if len(sys.argv) > 1:
        print(json.dumps(read_large(Path(sys.argv[1]))))
        return
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "forms").mkdir()
        (folder / "rows").mkdir()
        result["formats_taken"] = formats_taken(folder / "forms")
        large = folder / "large.jsonl"
        write_large(large)
        command = [sys.executable, "-m", "tests.bench.door.text_data", str(large)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        read = json.loads(done.stdout.splitlines()[-1])
        large.unlink()
        result["read_1gb_jsonl_rss_mb_over_idle"] = round(read["over_idle_mb"], 1)
        result["read_1gb_jsonl_s"] = round(read["took_s"], 1)
        result["open_100k_rows_s"] = round(open_rows(folder / "rows"), 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
