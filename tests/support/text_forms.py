"""One question with its answer, in each form that people keep such data in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUESTION, ANSWER = "yes or no?", "yes"
PAIR = {"prompt": QUESTION, "completion": ANSWER}
TALK = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]


def write_arrow(path: Path, rows: list[dict[str, Any]], *, stream: bool = False) -> None:
    """Arrow, as a file or as a stream."""
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    opened = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opened(path, table.schema) as writer:
        writer.write_table(table)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def written_forms(folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """One question with its answer, in each form: its name, its path and the fields to be named."""

    def at(name: str, content: str | bytes) -> Path:
        path = folder / name
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return path

    line = json.dumps(PAIR) + "\n"
    yield "json", at("one.json", json.dumps([PAIR])), {}
    yield "pretty array", at("pretty.json", json.dumps([PAIR], indent=4)), {}
    yield "json lines", at("lines.jsonl", line), {}
    yield "csv", at("table.csv", f'question,answer\n"{QUESTION}","{ANSWER}"\n'), {}
    yield "tsv", at("table.tsv", f"prompt\tcompletion\n{QUESTION}\t{ANSWER}\n"), {}
    parquet, arrow = folder / "table.parquet", folder / "table.arrow"
    write_parquet(parquet, [{"messages": TALK}])
    yield "parquet", parquet, {}
    write_arrow(arrow, [PAIR])
    yield "arrow", arrow, {}
    yield "text", at("text.txt", f"{QUESTION} {ANSWER}"), {}
    yield "gzip", at("lines.jsonl.gz", gzip.compress(line.encode())), {}
    yield "alpaca", at("alpaca.json", json.dumps([{"instruction": QUESTION, "output": ANSWER}])), {}
    turns = [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]
    yield "sharegpt", at("sharegpt.json", json.dumps([{"conversations": turns}])), {}
    yield "messages", at("messages.jsonl", json.dumps({"messages": TALK})), {}
    yield "prompt and completion", at("pairs.jsonl", line), {}
    mapped = {"prompt": "ask", "completion": "reply"}
    yield "mapped", at("mapped.jsonl", json.dumps({"ask": QUESTION, "reply": ANSWER, "text": "no"})), mapped
