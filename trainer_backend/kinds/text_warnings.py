"""What reading text data reports, by code, in sentences: {names} come with the code. No torch."""

from __future__ import annotations

from typing import Final

TEXT_WARNINGS: Final[dict[str, str]] = {
    "read-as": "{files} files of the {data} data, such as {first}, are read as {form}: {fields}.",
    "texts-passed-over": "{count} text files in {path} are skipped, since it also has files of records.",
    "data-mixed": "{path} has weight {weight}: {count} samples of it in each epoch.",
    "records-skipped": "{count} records of the {data} data cannot be used and are left out.",
    "records-not-chosen": "{count} records of the {data} data are marked as not chosen and are left out.",
    "records-cut": "{count} records of the {data} data are longer than {max_length} tokens and were cut.",
    "records-dropped": "{count} records of the {data} data are longer than {max_length} tokens and are "
    "left out.",
    "texts-split": "{count} texts of the {data} data are longer than {max_length} tokens and were split in "
    "consecutive blocks.",
    "text-rest-of-one": "{count} texts of the {data} data end with a single token behind their last block; "
    "it has nothing before it to be predicted from and is left out.",
    "records-without-answer": "{count} records of the {data} data have no answer to learn and are left out.",
    "answers-empty": "{count} answers of the {data} data are empty and are not learnt.",
    "answers-without-prompt": "{count} answers of the {data} data stand before any question, and the chat "
    "template cannot ask for those; they are not learnt.",
    "answers-without-end": "{count} answers of the {data} data have no token that ends them, and the "
    "tokenizer has no end-of-text token: the model will not learn to stop.",
    "special-tokens-in-texts": "Special tokens of the tokenizer occur {count} times inside texts of the "
    "{data} data; they are read as such tokens.",
    "no-chat-template": "The tokenizer has no chat template; a plain one is used.",
    "template-writes-date": "The chat template writes today's date into each conversation.",
    "thinking-on": "{count} answers of the {data} data are asked for with enable_thinking = true, since "
    "they have reasoning.",
    "thinking-off": "{count} answers of the {data} data are asked for with enable_thinking = false, since "
    "they have no reasoning.",
    "thinking-dropped": "The chat template leaves out the reasoning of {count} answers of the {data} data; "
    "it is not learnt.",
    "template-opens-block": "The chat template opens a block (such as thinking) that {count} answers of "
    "the {data} data do not have; they are learnt without it.",
    "template-rewrites-prompt": "The chat template writes a conversation differently once it is answered;"
    " {count} answers of the {data} data are learnt after the prompt that the"
    " model is used with.",
    "template-without-end": "The chat template gives {count} answers of the {data} data no end; the "
    "end-of-text token is added and learnt.",
    "prompts-joined": "{count} prompts and completions of the {data} data are joined as they are, since the "
    "tokenizer has no chat template.",
    "conversations-became-rows": "{count} conversations of the {data} data became {rows} rows: the chat"
    ' template writes earlier answers differently. task.train_on = "last"'
    " keeps the last row of each.",
}
