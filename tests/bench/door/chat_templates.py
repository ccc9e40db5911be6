"""Every chat template that the installed trl ships, with eight conversations each, against right values.

templates_tried           templates; each with eight conversations
conversations_tried       templates x conversations
templates_wrong           pairs whose learnt texts, or the tokens before them, are not the right ones
refused_without_reason    pairs that are refused although the template neither raises nor leaves content out

What is right was worked out by hand, family by family, from the templates' sources (`FAMILIES`): how an
answer opens behind the prompt of use, what ends it, where reasoning goes, how a tool call is written. Apart
from that, the tokens before each answer must be those of the template's own generation prompt.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.door import DOOR

END_OF_TEXT: Final = "<|endoftext|>"
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "lookup_river",
        "description": "Length of a river.",
        "parameters": {
            "type": "object",
            "properties": {"river": {"type": "string", "description": "Its name."}},
            "required": ["river"],
        },
    },
}
ASKED, AGAIN = "usrquery one?", "usrquery two?"
FIRST, SECOND = "ansA first", "ansB second"
ODD: Final = "usrquery two? ansB\n\n* e"
"""An answer that repeats the question and ends as a shorter answer does."""


def _said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


def _talk(answer: Any, last: Any, **more: Any) -> list[dict[str, Any]]:
    return [
        _said("user", ASKED),
        _said("assistant", answer, **more.get("first", {})),
        _said("user", AGAIN),
        _said("assistant", last, **more.get("second", {})),
    ]


CALL: Final = {
    "type": "function",
    "id": "abc123def",
    "function": {"name": "lookup_river", "arguments": '{"river": "argElbe"}'},
}
CONVERSATIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"messages": _talk(FIRST, SECOND)},
    "system": {"messages": [_said("system", "sysrule kind"), *_talk(FIRST, SECOND)]},
    "inline": {
        "messages": _talk(f"<think>\nwhyA\n</think>\n\n{FIRST}", f"<think>\nwhyB\n</think>\n\n{SECOND}")
    },
    "reasoning": {
        "messages": _talk(
            FIRST, SECOND, first={"reasoning_content": "whyA"}, second={"reasoning_content": "whyB"}
        )
    },
    "tools": {
        "tools": [TOOL],
        "messages": [
            _said("user", ASKED),
            _said("assistant", None, tool_calls=[CALL]),
            _said("tool", "toolres 1094", tool_call_id="abc123def", name="lookup_river"),
            _said("assistant", SECOND),
        ],
    },
    "parts": {
        "messages": [
            _said("user", [{"type": "text", "text": ASKED}]),
            _said("assistant", [{"type": "text", "text": FIRST}]),
        ]
    },
    "weight": {"messages": _talk(FIRST, SECOND, first={"weight": 0}, second={"weight": 1})},
    "odd": {"messages": [*_talk("e", ODD), _said("user", ASKED)]},
}


@dataclasses.dataclass(frozen=True)
class Family:
    """How templates of one family write an answer behind the prompt of use."""

    end: str
    opening: str = ""
    thought: str = ""
    """Reasoning and its surroundings, {why}; empty: left as typed where it stands in the text."""
    keyed: str = ""
    """The same where reasoning stands in a key of its own, if it is written otherwise then."""
    drops: bool = False
    """Reasoning is left out, wherever it stands."""
    call: str = ""
    """A tool call up to its end; empty: the template leaves tool calls out."""
    behind_tools: str = ""
    """What an answer begins with behind a tool's result, if not with `opening`."""
    system: bool = True
    """Whether it takes a system message."""


DEEPSEEK_END: Final = "<｜end▁of▁sentence｜>"  # noqa: RUF001 - the model's own signs
DEEPSEEK_CALL: Final = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>lookup_river\n```json\n"  # noqa: RUF001
    '{"river": "argElbe"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>' + DEEPSEEK_END  # noqa: RUF001
)
GEMMA_CALL: Final = '<|tool_call>call:lookup_river{river:<|"|>argElbe<|"|>}<tool_call|>'
GEMMA_THOUGHT: Final = "<|channel>thought\n{why}\n<channel|>"
JSON_CALL: Final = (
    '<tool_call>\n{"name": "lookup_river", "arguments": {"river": "argElbe"}}\n</tool_call><|im_end|>'
)
XML_CALL: Final = (
    "<tool_call>\n<function=lookup_river>\n<parameter=river>\nargElbe\n</parameter>\n"
    "</function>\n</tool_call>"
)
GLM_CALL: Final = (
    "\n<tool_call>lookup_river\n<arg_key>river</arg_key>\n<arg_value>argElbe</arg_value>\n</tool_call>"
)
GLM_THOUGHT: Final = "<think>{why}</think>\n"
LFM_CALL: Final = "<|tool_call_start|>[lookup_river(river='argElbe')]<|tool_call_end|><|im_end|>"
LLAMA_CALL: Final = '{"name": "lookup_river", "parameters": {"river": "argElbe"}}<|eot_id|>'
MUSE_CALL: Final = (
    ' to=lookup_river<|message|><atem:function_calls>\n<atem:invoke name="lookup_river">\n'
    '<atem:parameter name="river">argElbe</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>'
)
BEHIND_OPEN: Final = "{why}\n</think>\n\n"
"""The prompt of use has opened the block."""
WHOLE: Final = "<think>\n{why}\n</think>\n\n"
FAMILIES: Final[dict[str, Family]] = {
    "cohere": Family("<|END_OF_TURN_TOKEN|>"),
    "cohere2": Family("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    "deepseek_r1_distill": Family(DEEPSEEK_END, drops=True),
    "deepseek_r1_distill_training": Family(DEEPSEEK_END, thought=BEHIND_OPEN),
    "deepseekv3": Family(DEEPSEEK_END, drops=True, call=DEEPSEEK_CALL),
    "diffusion_gemma": Family(
        "<turn|>",
        thought=GEMMA_THOUGHT,
        call=f"{GEMMA_CALL}<|tool_response>",
        behind_tools="<|turn>model\n",
    ),
    "gemma": Family("<end_of_turn>", system=False),
    "gemma3": Family("<end_of_turn>"),
    "gemma4": Family("<turn|>", call=f"{GEMMA_CALL}<|tool_response>"),
    "gemma4_v2": Family("<turn|>", call=f"{GEMMA_CALL}<turn|>"),
    "gemma4_v5": Family("<turn|>", thought=GEMMA_THOUGHT, call=f"{GEMMA_CALL}<|tool_response>"),
    "glm4moe": Family(END_OF_TEXT, "\n", thought=GLM_THOUGHT, call=GLM_CALL + END_OF_TEXT),
    "glm4moe_training": Family("<|user|>", "\n", thought=GLM_THOUGHT, call=f"{GLM_CALL}<|observation|>"),
    "gptoss": Family(
        "<|return|>",
        "<|channel|>final<|message|>",
        thought="<|channel|>analysis<|message|>{why}<|end|><|start|>assistant",
        call=' to=functions.lookup_river<|channel|>commentary json<|message|>{"river": "argElbe"}<|call|>',
    ),
    "idefics3": Family("<end_of_utterance>", " "),
    "lfm2": Family("<|im_end|>"),
    "lfm2_2_5": Family("<|im_end|>", thought=WHOLE, keyed="<think>{why}</think>", call=LFM_CALL),
    "lfm2_v2": Family("<|im_end|>", call=LFM_CALL),
    "llama3": Family("<|eot_id|>"),
    "llama3_1": Family("<|eot_id|>", call=LLAMA_CALL),
    "llama3_2": Family("<|eot_id|>", call=LLAMA_CALL),
    "llava_next": Family("</s>", " "),
    "muse_glimmer": Family(
        "<|eot|>",
        " to=user<|message|>",
        thought=" to=self<|message|>{why}<|eom|><|start|>assistant",
        call=MUSE_CALL,
    ),
    "nemotron_3": Family(
        "<|im_end|>",
        thought=BEHIND_OPEN,
        keyed="{why}\n</think>\n",
        call=f"\n{XML_CALL}\n<|im_end|>",
    ),
    "nemotron_3_5": Family(
        "<|im_end|>", thought=BEHIND_OPEN, keyed="{why}</think>", call=f"\n{XML_CALL}\n<|im_end|>"
    ),
    "nemotron_3_ultra": Family(
        "<|im_end|>", thought=BEHIND_OPEN, keyed="{why}</think>", call=f"\n{XML_CALL}\n<|im_end|>"
    ),
    "phi3": Family("<|end|>"),
    "qwen2_5": Family("<|im_end|>", call=JSON_CALL),
    "qwen2_5_vl": Family("<|im_end|>"),
    "qwen3": Family("<|im_end|>", thought=WHOLE, call=JSON_CALL),
    "qwen3_instruct": Family("<|im_end|>", call=JSON_CALL),
    "qwen3_vl": Family("<|im_end|>", call=JSON_CALL),
    "qwen3_5": Family("<|im_end|>", thought=BEHIND_OPEN, call=f"{XML_CALL}<|im_end|>"),
    "qwen3_6": Family("<|im_end|>", thought=BEHIND_OPEN, call=f"{XML_CALL}<|im_end|>"),
    "qwen3_8": Family("<|im_end|>", thought=BEHIND_OPEN, call=f"{XML_CALL}<|im_end|>"),
    "smolvlm": Family("<end_of_utterance>", " "),
}
"""By the longest beginning of a template's name."""


def right_texts(family: Family, conversation: str) -> list[str] | None:
    """What of a conversation is to be learnt; None where the template takes it not whole."""
    opening, end = family.opening, family.end
    thought = (conversation == "reasoning" and family.keyed) or family.thought
    whys = [thought.format(why=why) for why in ("whyA", "whyB")]
    match conversation:
        case "plain":
            return [opening + FIRST + end, opening + SECOND + end]
        case "system":
            return [opening + FIRST + end, opening + SECOND + end] if family.system else None
        case "inline" if family.drops:  # the line breaks behind the block stay in the text
            return [f"\n\n{FIRST}{end}", f"\n\n{SECOND}{end}"]
        case "inline" if not family.thought:
            whys = [WHOLE.format(why=why) for why in ("whyA", "whyB")]
            return [opening + whys[0] + FIRST + end, opening + whys[1] + SECOND + end]
        case "inline" | "reasoning":
            # Channels come before the answer's own; blocks inside of it.
            before = opening.startswith(("<", " to="))
            texts = [(FIRST, whys[0]), (SECOND, whys[1])]
            return [(why + opening if before else opening + why) + text + end for text, why in texts]
        case "tools":
            return [family.call, (family.behind_tools or opening) + SECOND + end] if family.call else None
        case "parts":
            return [opening + FIRST + end]
        case "weight":
            return [opening + SECOND + end]
    return [opening + "e" + end, opening + ODD + end]


def templates() -> list[Path]:
    """Those of the installed trl."""
    found = importlib.util.find_spec("trl")  # not imported: its folder is all that is wanted
    assert found is not None, "pip install trl"
    assert found.origin is not None
    return sorted((Path(found.origin).parent / "chat_templates").glob("*.jinja"))


_SIGNS: Final = re.compile(
    r"<[|｜][^<>\n'\"{}]{1,40}?[|｜]>"  # noqa: RUF001 - a model's own sign
    r"|<\|[a-z_]+>|<[a-z_]+\|>|</?[a-zA-Z][a-zA-Z_]*>|\[/?[A-Z_]+\]"
)
_TAGS: Final = re.compile(r"</?(think|tool|tools|tool_[a-z]+|function|parameter|arg_[a-z]+)>")
"""Tokens of their own that are no special tokens."""


def tokenizer_for(text: str) -> Any:
    """A byte-level tokenizer that knows the signs of a template."""
    import tokenizers
    import transformers

    core = tokenizers.Tokenizer.from_file(str(DOOR / "tok_plain" / "tokenizer.json"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<|bos|>", eos_token=END_OF_TEXT
    )
    signs = list(dict.fromkeys(found[0] for found in _SIGNS.finditer(text)))
    tokenizer.add_special_tokens(
        {"extra_special_tokens": [sign for sign in signs if not _TAGS.fullmatch(sign)]}
    )
    tokenizer.add_tokens([sign for sign in signs if _TAGS.fullmatch(sign)])
    tokenizer.chat_template = text
    return tokenizer


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One template with one conversation."""

    template: str
    conversation: str
    learnt: list[str] | None
    right: list[str] | None
    reason: str = ""
    has_prompt_of_use: bool = True

    @property
    def is_wrong(self) -> bool:
        """Learnt, and not what is right."""
        return self.learnt is not None and (self.learnt != self.right or not self.has_prompt_of_use)

    @property
    def is_refused_without_reason(self) -> bool:
        """Refused, though it could be learnt."""
        return self.learnt is None and self.right is not None


def outcomes(file: Path) -> list[Outcome]:
    """One template with every conversation."""
    name = file.stem
    family = FAMILIES[max((key for key in FAMILIES if name.startswith(key)), key=len)]
    tokenizer = tokenizer_for(file.read_text("utf-8"))
    return [_outcome(name, tokenizer, family, conversation) for conversation in CONVERSATIONS]


def _outcome(name: str, tokenizer: Any, family: Family, conversation: str) -> Outcome:
    from trainer_backend.kinds.causal_lm import CausalLMData
    from trainer_backend.tasks.causal_lm.answers import Answers
    from trainer_backend.tasks.causal_lm.forms import Reading
    from trainer_backend.tasks.causal_lm.raw_text import DataRecord
    from trainer_backend.tasks.causal_lm.spans import Tokens, specials_of
    from trainer_backend.tasks.causal_lm.templates import Template
    from trainer_backend.tasks.causal_lm.turns import Dialogue, Unfit

    record = CONVERSATIONS[conversation]
    right = right_texts(family, conversation)
    samples = Reading(CausalLMData(path="x")).samples("x", iter([DataRecord("x:1", record)]))
    (dialogue,) = [sample for sample, _ in samples if isinstance(sample, Dialogue)]
    answers = Answers(Template(tokenizer), specials_of(tokenizer))
    tokens = Tokens(tokenizer)
    try:
        learnt, prompts = [], []
        for row in answers.rows(dialogue):
            ids, mask = tokens.learnt(row)
            for begin, end in _runs(mask):
                learnt.append(tokenizer.decode(ids[begin:end]))
                prompts.append((ids[:begin], any(mask[:begin])))
    except Unfit as error:
        return Outcome(name, conversation, None, right, str(error))
    held = all(_is_prompt_of_use(tokenizer, record, *prompt) for prompt in prompts)
    return Outcome(name, conversation, learnt, right, has_prompt_of_use=held)


def _runs(mask: list[bool]) -> list[tuple[int, int]]:
    edges = [at for at in range(len(mask) + 1) if (at < len(mask) and mask[at]) != (at > 0 and mask[at - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _is_prompt_of_use(tokenizer: Any, record: dict[str, Any], prompt: list[int], goes_on: bool) -> bool:
    """Whether these tokens are a generation prompt's, or its beginning up to the block that it opens.

    Behind an answer of the same row the text decides: there the tokens are those that the model wrote.
    """
    messages = [
        {key: value for key, value in message.items() if key != "weight"} for message in record["messages"]
    ]
    for message in messages:
        if "tool_calls" in message:
            function = {"name": "lookup_river", "arguments": {"river": "argElbe"}}
            message["tool_calls"] = [CALL | {"function": function}]
    text = tokenizer.decode(prompt)
    switches: list[dict[str, bool]] = [{}, {"enable_thinking": True}, {"enable_thinking": False}]
    apart, inlined = [_apart(message) for message in messages], [_inlined(message) for message in messages]
    for count, written, parts, switch, key in itertools.product(
        range(1, len(messages)), (messages, apart, inlined), (False, True), switches, ("arguments", "text")
    ):
        asked = _generation_prompt(tokenizer, record, written[:count], parts, switch, key)
        if asked is not None and (asked == text or asked.removesuffix("<think>\n") == text):
            return goes_on or prompt == tokenizer(text, add_special_tokens=False)["input_ids"]
    return False


def _apart(message: dict[str, Any]) -> dict[str, Any]:
    """Reasoning in keys of its own, for templates that have one and do not look for it in the text."""
    content = message["content"]
    why, text = message.get("reasoning_content", ""), content
    if isinstance(content, str) and "</think>" in content:
        why, _, text = content.removeprefix("<think>").partition("</think>")
    if not why:
        return message
    keys = ("reasoning_content", "reasoning", "thinking")
    return message | dict.fromkeys(keys, why.strip()) | {"content": text.strip()}


def _inlined(message: dict[str, Any]) -> dict[str, Any]:
    """Reasoning in the text, for templates that open a block and have no key for it."""
    if "reasoning_content" not in message:
        return message
    return message | {"content": WHOLE.format(why=message["reasoning_content"]) + message["content"]}


def _generation_prompt(
    tokenizer: Any,
    record: dict[str, Any],
    messages: list[dict[str, Any]],
    parts: bool,
    switch: dict[str, bool],
    key: str,
) -> str | None:
    asked = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list) and not parts:
            content = content[0]["text"]
        elif isinstance(content, str) and parts:
            content = [{"type": "text", "text": content}]
        changed = message | {"content": content or ""}
        if key == "text" and "tool_calls" in message:
            changed["tool_calls"] = [CALL]
        asked.append(changed)
    try:
        text: str = tokenizer.apply_chat_template(
            asked, tools=record.get("tools"), tokenize=False, add_generation_prompt=True, **switch
        )
    except Exception:  # noqa: BLE001 - a template is a program of its own; another way of writing is tried
        return None
    return text


def main() -> None:
    """Try them all."""
    found = [outcome for file in templates() for outcome in outcomes(file)]
    for outcome in found:
        if outcome.is_wrong or outcome.is_refused_without_reason:
            print(outcome, file=sys.stderr)
    print(
        json.dumps(
            {
                "templates_tried": len(templates()),
                "conversations_tried": len(found),
                "templates_wrong": sum(outcome.is_wrong for outcome in found),
                "refused_without_reason": sum(outcome.is_refused_without_reason for outcome in found),
            }
        )
    )


if __name__ == "__main__":
    main()
