"""Made-up damage: to bytes, and to text in lines of keys and values."""

from __future__ import annotations

import random
from typing import Final

ODD_VALUES: Final = (
    "", "0", "-1", "1", "1e3", "1e400", "-0.0", "nan", "inf", "-inf", "true", "null", "none", "0x10",
    "0o17", "1_000",
    "0,5", "1.5", "9" * 25, "9" * 5_000, "-" + "9" * 400, "1e-400", "2026-01-01", "07:32:00",
    '""', '" "', '"x"', "'x'",
    '"\\u0000"', '"\\u001b[31m"', '"\\ud800"', '"\\U0010ffff"', '"é✓"', '"' + "a" * 3_000 + '"', "[]",
    "{}", "[[]]",
    "[1, 2]", '["a", 1]', "[0.9, 0.999]", "{a = 1}", "[{}]", '"""', "'''",
    "[" * 40 + "]" * 40, "[" * 3_000, "@", "#",
    "=", "&a", "*a", "!!python/object:os.system x", "|", ">", "- - -", "? x", "%YAML 9", "~", "yes",
    "off", '"/dev/zero"',
    '"/"', '"."', '".."', '"../../x"', '"\\\\\\\\server\\\\x"', '"file:///etc/passwd"', "[run]",
    "[[run]]", "[a.b.c]",
)  # fmt: skip
"""What stands where a value belongs: TOML's, YAML's and JSON's, too large, too deep, of another kind."""
ODD_TEXTS: Final = (
    "\x00", "\x1b[2J", "\x7f", "\x9b", "\ufeff", "\u202e", "\u2028", "\ud800", "\U0010ffff", "é", "✓",
    "\t", "\r",
    "\n", "\r\n", " ", '"', "'", "\\", "/", "..", "-", "--", "=", ",", ";", "%s", "{}", "$HOME", "`x`",
    "*", "?", "~",
    "a" * 300, "1" * 5_000, "nan", "inf", "-1", "0", "1e999",
)  # fmt: skip
"""What stands in a word of a command or an environment."""


def bytes_of(draw: random.Random, data: bytes, most: int = 6) -> bytes:
    """Some bytes changed, cut, doubled, moved or put in."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, most)):
        at, to = sorted((draw.randint(0, len(changed)), draw.randint(0, len(changed))))
        match draw.randrange(8):
            case 0 | 1 | 2 if at < len(changed):
                changed[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            case 3:
                del changed[at : min(to, at + draw.randint(1, 64))]
            case 4:
                changed[at:at] = draw.randbytes(draw.randint(1, 16))
            case 5:
                changed[at:at] = changed[at : min(to, at + 200)]
            case 6 if draw.random() < 0.2:
                del changed[at:]
            case _:
                piece = changed[at : at + 8]
                changed[to : to + len(piece)] = piece
    return bytes(changed)


def text_of(draw: random.Random, text: str, keys: tuple[str, ...], sign: str) -> str:
    """Lines of `key <sign> value` with other values, keys and order; `keys` are names that may occur."""
    lines = text.splitlines()
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(lines) + 1)
        line = lines[at] if at < len(lines) else ""
        key, found, value = line.partition(sign)
        match draw.randrange(9):
            case 0 | 1 | 2 if found:
                lines[at] = f"{key}{sign} {draw.choice(ODD_VALUES)}"
            case 3:
                lines.insert(at, f"{draw.choice(keys)} {sign} {draw.choice(ODD_VALUES)}")
            case 4 if found:
                lines[at] = f"{draw.choice((*keys, *ODD_TEXTS))}{sign}{value}"
            case 5 if line:
                del lines[at]
            case 6:
                lines.insert(at, draw.choice(lines) if lines else "")
            case 7:
                place = draw.randint(0, len(line))
                lines[at : at + 1] = [line[:place] + draw.choice(ODD_TEXTS) + line[place:]]
            case _:
                lines.insert(at, draw.choice(ODD_VALUES))
    return "\n".join(lines) + "\n"


def plain_of(draw: random.Random, value: object, depth: int = 0) -> object:
    """JSON's plain data with one part of it changed."""
    if isinstance(value, dict) and value and depth < 8 and draw.random() < 0.85:
        key = draw.choice(sorted(value))
        match draw.randrange(6):
            case 0:
                return {name: entry for name, entry in value.items() if name != key}
            case 1:
                return value | {draw.choice(("x", "0", key + " ", "")): value[key]}
            case _:
                return value | {key: plain_of(draw, value[key], depth + 1)}
    if isinstance(value, list) and value and depth < 8 and draw.random() < 0.7:
        place = draw.randrange(len(value))
        return [*value[:place], plain_of(draw, value[place], depth + 1), *value[place + 1 :]]
    return draw.choice((
        None, True, -1, 0, 1, 2**31, 2**63, 2**70, 10**400, 0.5, -1.5, 1e308, float("nan"), float("inf"),
        "", "x",
        "\x1b[2J", "é" * 100, [], [[]], [None], {}, {"x": 1}, [1, 2, 3], "1", [value], {"x": value},
    ))  # fmt: skip
