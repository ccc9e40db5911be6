"""What a check says: title and sentence of each finding, by code. {names} come with the code. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainer_backend.kinds.task_warnings import TASK_WARNINGS, worded
from trainer_backend.preflight.findings import CheckProgress, Finding

Translate = Callable[[str], str]

PROGRESS: Final[dict[str, str]] = {
    "importing-torch": "Importing torch…",
    "reading-some": "Reading the first records…",
    "reading-data": "Reading all of the data…",
    "checking-data": "Checking the data…",
    "building-model": "Building the model…",
    "trying-model": "Running one micro-batch…",
}

TITLES: Final[dict[str, str]] = {
    "data-read": "Data",
    "data-read-in-part": "Data",
    "data-refused": "Data",
    "recipe-refused": "Recipe",
    "learnable": "Something to learn",
    "nothing-to-learn": "Something to learn",
    "ids-known": "Token ids",
    "ids-beyond": "Token ids",
    "lengths-fit": "Length",
    "lengths-cut": "Length",
    "n-fits": "N and the data",
    "n-fits-exactly": "N and the data",
    "n-carries": "N and the data",
    "n-drops": "N and the data",
    "n-exceeds": "N and the data",
    "n-drops-all": "N and the data",
    "n-unknown": "N and the data",
    "warmup-fits": "Warm-up",
    "warmup-none": "Warm-up",
    "warmup-exceeds": "Warm-up",
    "split-apart": "Validation data",
    "split-none": "Validation data",
    "split-held": "Validation data",
    "split-uncounted": "Validation data",
    "split-overlaps": "Training and validation overlap",
    "repeats": "Repeated samples",
    "thinking-dropped": "Thinking is left out",
    "specials-in-texts": "Special tokens inside messages",
    "answers-without-end": "Answers have no end",
    "template-own": "Chat template",
    "template-plain": "Chat template",
    "template-foreign": "Chat template",
    "masks-known": "Mask values",
    "masks-undecided": "Mask values",
    "classes-missing": "Mask values",
    "masks-much-ignored": "Ignored pixels",
    "class-rare": "Rare class",
    "range-unknown": "Picture values",
    "values-scaled": "Picture values",
    "values-low": "Picture values",
    "normalized-own": "Normalization",
    "normalized-other": "Normalization",
    "normalized-stated": "Normalization",
    "normalized-plain": "Normalization",
    "turned-alone": "Orientation",
    "model-built": "Model",
    "model-refused": "Model",
    "model-waits": "Model",
    "model-too-large": "Model",
    "weights-missing": "Weights",
    "optimizer-holds": "Optimizer",
    "optimizer-misses": "Optimizer",
    "gradient-everywhere": "Gradient",
    "gradient-missing": "Gradient",
    "loss-finite": "Loss at the start",
    "loss-not-finite": "Loss at the start",
    "loss-as-chance": "Loss at the start",
    "loss-far": "Loss at the start",
    "loss-above-chance": "Loss at the start",
    "loss-adds-up": "Loss adds up",
    "loss-does-not-add-up": "Loss adds up",
    "batch-norm-none": "BatchNorm",
    "batch-norm": "BatchNorm",
    "model-remark": "Model",
    "model-later": "Model checks not run yet",
    "not-tried": "A check",
    "disk-enough": "Disk",
    "disk-short": "Disk",
}
"""What was checked, by a finding's code."""

SENTENCES: Final[dict[str, str]] = {
    "data-read": "{count} {what} read, none left out",
    "data-read-in-part": "{count} {what} read, {left_out} left out",
    "data-refused": "{sentence}",
    "recipe-refused": "{sentence}",
    "learnable": "{count} {what} per epoch, D = {weight} in step 1",
    "nothing-to-learn": "Nothing in the first optimizer step has a loss: its denominator D is 0. "
    "Check the data's answers or masks.",
    "ids-known": "the highest is {highest}; the embedding has {rows} rows",
    "ids-beyond": "{place}: the token {token} has the id {highest}, and the model's embedding has "
    "{rows} rows. {count} rows of the data are affected. Use the model's own tokenizer, or set "
    "task.resize_embedding = true.",
    "lengths-fit": "nothing is cut; the longest has {longest} of {allowed} tokens",
    "lengths-cut": "{count} of {samples} samples are longer than task.max_length = {allowed}: {what}.",
    "n-fits": "{steps} optimizer steps per epoch, {rest} samples in the last",
    "n-carries": "{steps} full optimizer steps per epoch; {rest} samples go on into the next",
    "n-drops": "{steps} optimizer steps per epoch; {rest} samples are left out",
    "n-fits-exactly": "{steps} optimizer steps per epoch, all of them full",
    "n-exceeds": "One optimizer step asks for {effective} samples, and an epoch has {samples}. So "
    "each epoch is one step of {samples} samples.",
    "n-drops-all": "One optimizer step asks for {effective} samples, an epoch has {samples}, and "
    "accumulation.tail = drop leaves smaller steps out: nothing would be trained. Use a smaller N or "
    "micro-batch, or tail = step.",
    "n-unknown": "the data does not say how many samples it has",
    "warmup-fits": "{steps} of {all_steps} optimizer steps",
    "warmup-none": "none",
    "warmup-exceeds": "The warm-up ({warmup} samples) is longer than the whole run ({horizon} "
    "samples), so the learning rate never reaches its peak.",
    "split-apart": "{held} samples are held out; none is in both parts",
    "split-none": "there is none",
    "split-held": "{held} samples are held out",
    "split-uncounted": "there is some; it does not say how much",
    "split-overlaps": "{count} validation samples are also in the training data, byte for byte "
    "(first: {first}). The validation loss will look better than it is.",
    "repeats": "{count} of {samples} training samples repeat another one, byte for byte (first: {first}).",
    "thinking-dropped": TASK_WARNINGS["thinking-dropped"],
    "specials-in-texts": TASK_WARNINGS["special-tokens-in-texts"],
    "answers-without-end": TASK_WARNINGS["answers-without-end"],
    "template-own": "every special token that it writes is one token of this tokenizer",
    "template-plain": "The tokenizer has none, so a plain one is used. Name one in task.chat_template "
    "if the model was trained with one.",
    "template-foreign": "The chat template writes {token}, which this tokenizer cuts into {pieces} "
    "tokens: the template was made for another family of models.",
    "masks-known": "each of the {classes} classes occurs",
    "masks-undecided": "{sentence}",
    "classes-missing": "{sentence}",
    "masks-much-ignored": TASK_WARNINGS["mask-much-ignored"],
    "class-rare": "Class {value} is in {files} of {all_files} masks, and in none of the validation part.",
    "range-unknown": "{sentence}",
    "values-scaled": "{low} to {high} become 0 to 1 in all pictures",
    "values-low": TASK_WARNINGS["values-below-range"],
    "normalized-own": "as {model} was trained: {values}",
    "normalized-other": "{model} was trained with {values}, and the recipe states {stated}. Leave "
    "task.mean and task.std out to use its own.",
    "normalized-stated": "as the recipe states: {values}",
    "normalized-plain": "{values}; the network starts from random weights",
    "turned-alone": TASK_WARNINGS["picture-turned-alone"],
    "model-built": "{trained} of {all} parameters are trained; tried on {device}",
    "model-refused": "{sentence}",
    "model-waits": "Not tried: {why}. A run needs it.",
    "model-too-large": "Not tried: its weights take {size} GB, and {free} GB of memory are free here.",
    "weights-missing": TASK_WARNINGS["weights-missing"],
    "optimizer-holds": "holds all {count} trained tensors",
    "optimizer-misses": "The optimizer does not hold {count} trained tensors (first: {first}), so "
    "they never change. Hand all parameters over in the task's optimizer().",
    "gradient-everywhere": "in all {count} trained tensors",
    "gradient-missing": "{count} of {all} trained tensors get no gradient (first: {first}): the loss "
    "of this micro-batch does not depend on them, so they would not be trained. Freeze them, or use "
    "them in the loss.",
    "loss-finite": "{loss}",
    "loss-not-finite": "The loss of the first micro-batch is {loss}. Look at the data's values, the "
    "loss, and run.precision.",
    "loss-as-chance": "{loss}; guessing among {classes} gives ln {classes} = {chance}",
    "loss-far": "{loss}, while guessing among {classes} gives ln {classes} = {chance}. A new output "
    "layer should start near that: check targets, initial weights and the scale of the inputs.",
    "loss-above-chance": "{loss} is no better than guessing among {classes} tokens ({chance}): the "
    "weights may not be those of a trained model, or the tokenizer is another model's.",
    "loss-adds-up": "a micro-batch's loss is the sum of its halves'",
    "loss-does-not-add-up": "{sentence}",
    "batch-norm-none": "none: the loss of a sample does not depend on its micro-batch",
    "batch-norm": "{sentence}",
    "model-remark": "{sentence}",
    "model-later": "Gradients, loss at the start, optimizer and disk are checked once nothing else prevents"
    " a start.",
    "not-tried": "Not tried: {why}.",
    "disk-enough": "2 checkpoints: {wanted} GB of {free} GB free",
    "disk-short": "Two checkpoints take {wanted} GB, and {free} GB are free in {folder}. Free some "
    "space, or set GRADACC_HOME to a larger disk.",
}
"""What was found, by code; what is right is said in a few words, the rest in sentences."""

WHAT_BECAME: Final[dict[str, str]] = {
    "cut": "their beginning is cut",
    "dropped": "they are left out",
    "split": "they are split in consecutive blocks",
}


def title(finding: Finding, tr: Translate = str) -> str:
    """What was checked."""
    return tr(TITLES[finding.code])


def sentence(finding: Finding, tr: Translate = str) -> str:
    """What was found, with its figures."""
    return worded(SENTENCES, finding.code, finding.values, tr)


def check_progress(entry: CheckProgress, tr: Translate = str) -> str:
    """What is being done."""
    return tr(PROGRESS.get(entry.code, entry.code))


def cost(duration_s: float) -> str:
    """What a check took: "< 0.1 s", "3.8 s"."""
    return "< 0.1 s" if duration_s < 0.1 else f"{duration_s:.1f} s"
