"""Codes that the trainer reports, and their sentences: the one list to translate. No Qt.

{names} are the values that come with a code. A sentence says what happened and what to do about it.
"""

from __future__ import annotations

from typing import Final

from trainer_backend.kinds.text_warnings import TEXT_WARNINGS

PHASES: Final[dict[str, str]] = {
    "importing-torch": "Importing torch…",
    "reading-data": "Reading the data…",
    "building-model": "Building the model…",
    "restoring-checkpoint": "Restoring the checkpoint…",
    "compiling": "Compiling the model…",
    "training": "Training",
    "evaluating": "Evaluating…",
    "saving": "Saving a checkpoint…",
}

SKIPPED: Final[dict[str, str]] = {
    "empty": "no valid token or sample in the window, so nothing was updated",
    "non-finite": "a loss or gradient was NaN or infinite, so the update was skipped",
    "loss-scale": "the fp16 loss scale was too large; it was lowered and the update skipped",
}

END_REASONS: Final[dict[str, str]] = {
    "max_optimizer_steps": "all optimizer steps are done",
    "max_samples": "all samples were seen",
    "epochs": "all epochs are done",
    "stop": "as requested, after the step and a checkpoint",
    "stop-now": "as requested, at once; the unfinished step is repeated on resume",
    "signal": "the system asked it to stop; a checkpoint was saved",
}

COMMANDS: Final[dict[str, str]] = {
    "SetAccumulation": "A new N",
    "SetMicroBatchSize": "A new micro-batch size",
    "SetLearningRate": "A new learning rate",
    "SetMaxGradNorm": "A new clipping bound",
    "Pause": "A pause",
    "Resume": "Resume",
    "SaveCheckpoint": "A checkpoint",
    "RollBack": "A roll-back",
    "Stop": "A stop",
}
"""What was asked, by the command's class: the subject of "… was refused"."""

REFUSALS: Final[dict[str, str]] = {
    "superseded": "a later command took its place",
    "stale": "it was left over from before this attempt started",
    "malformed": "the file in the inbox is not a command: {reason}",
    "run-is-ending": "the run is ending",
    "out-of-range": "{value} for {key} is out of range",
    "not-divisible": "an effective batch of {effective_batch} cannot be cut into micro-batches of {size}; "
    "the nearest sizes that fit are {below} and {above}",
    "no-beta2": "this optimizer has no β₂ to scale",
    "no-ema": "this run keeps no average of its weights",
    "already-paused": "the run is paused already",
    "not-paused": "the run is not paused",
    "no-checkpoint": "there is no checkpoint to go back to",
    "library-counts-updates-ahead": "the library has counted its updates ahead; N stays {before} in this run",
    "epoch-ended-early": "the epoch ended before step {step}, where the library's counter would have allowed "
    "it; ask again",
    "library-decides": "the library that trains decides this, not gradacc",
    "rolling-back": "the run is being rolled back; ask again once it stands there",
}

TARGETS: Final[dict[str, tuple[str, str, str]]] = {
    "targets.peak_memory": ("peak memory", "at most", "GiB"),
    "targets.step_time": ("median step time", "at most", "s"),
    "targets.throughput": ("median throughput", "at least", "samples/s"),
    "targets.validation_loss": ("final validation loss", "at most", ""),
    "targets.cost": ("energy", "at most", "kWh"),
}
"""What a target of a recipe is about, which bound it is, and its unit."""

WARNINGS: Final[dict[str, str]] = {
    "target-met": "Target met: {quantity} {reached} ({bound} {target})",
    "target-missed": "Target missed: {quantity} {reached} ({bound} {target})",
    "recompiled": "The model was compiled again at step {step} ({graphs} graphs so far), because a "
    "micro-batch had a new shape. This costs time: use a fixed length, or turn run.compile off.",
    "warmup-longer-than-run": "The warm-up ({warmup} samples) is longer than the whole schedule ({horizon} "
    "samples), so the learning rate never reaches its peak.",
    # What cannot be read here (see READINGS).
    "nvml-library-missing": "No NVIDIA driver was found: no GPU readings.",
    "nvml-driver-not-loaded": "The NVIDIA driver is installed but not loaded, so its readings are not shown.",
    "nvml-driver-mismatch": "The NVIDIA driver was updated under the running system; restart the machine to "
    "get its readings back.",
    "nvml-no-permission": "This user may not read the NVIDIA driver, so its readings are not shown.",
    "nvml-binding-missing": "The package nvidia-ml-py is missing in the trainer's interpreter, so a GPU's "
    "readings are not shown.",
    "nvml-failed": "The NVIDIA driver does not answer ({reason}), so its readings are not shown.",
    "gpu-lost": "The GPU can no longer be read ({reason}); its readings end here.",
    "gpu-not-matched": "The driver does not list the GPU that torch uses (device {device}), so its readings "
    "are left out rather than taken from another card.",
    "metric-not-supported": "This machine does not report its {metric} ({reason}); that line has a gap.",
    "device-readings-not-available": "A {kind} device reports only what torch allocated on it.",
    "readings-failed": "Memory and power cannot be read ({reason}); training continues without them.",
    # The run's own.
    "inbox-failed": "Commands cannot be read from the run's inbox ({error}); the run continues but "
    "cannot be changed.",
    "replay-ended": "A new command at step {step} ended the replay of the changes made before the "
    "interruption.",
    "source-changed": "The code of {entry} has changed since this run began; it continues with the new code.",
    "command-not-obeyed": "{command} was accepted before the interruption and never took effect. Ask for it "
    "again if you still want it.",
    "checkpoint-not-saved": "The checkpoint at step {step} could not be saved ({reason}); training "
    "continues. "
    "Free some disk space.",
    "checkpoint-damaged": "The checkpoint of step {step} is damaged ({reason}); trying an older one.",
    "replay-declined": "From step {step} on, changes made before the interruption are not applied again.",
    # The model and the loss.
    "batch-norm": "BatchNorm ({modules} modules, first {first}) sees each micro-batch of {micro_batch_size} "
    "on its own, not the effective batch. Use GroupNorm or LayerNorm, a larger micro-batch, or a momentum of "
    "{suggested_momentum}.",
    "batch-norm-of-one": "BatchNorm ({modules} modules, first {first}) sees a single sample at a time: it "
    "normalises each by itself, and fails where a sample has one value a channel. Use a larger micro-batch "
    "with a smaller N, freeze these layers, or use GroupNorm.",
    "optimizer-in-backward": "A hook on {parameter} runs inside the backward and may change it before the "
    "step's end; accumulation is then not exact.",
    "reentrant-checkpointing": "Under reentrant checkpointing {parameter} is used more than once, so its "
    "micro-batch norms may not be known. Use use_reentrant=False.",
    "half-gradients": "{parameters} parameters gather their gradients in half precision, which is inexact; "
    "accumulation.gradient_dtype = fp32 is exact.",
    "loss-half": "The total of {term} is {dtype}; return it in fp32, or it is refused.",
    "loss-mean": "The total of {term} looks like a mean, while its weight says it is a sum. Return the sum.",
    "loss-weight-not-additive": "The weight of {term} for a batch is not that of its parts together; the "
    "micro-batches of a step will not add up to the large batch.",
    "loss-not-additive": "The loss {term} of a batch is not the sum of its parts'; N micro-batches are then "
    "another loss than one large batch. Contrastive and batch-wide losses are such.",
    # The data.
    "loss-changes-batch": "The loss changes its batch in place ({tensor}). It gets copies, so that "
    "replays stay exact; that costs memory and time.",
    "no-validation-data": "{samples} samples are too few to hold any out, so there is no validation loss.",
    "images-skipped": "{count} images cannot be used and are left out.",
    "hidden-files": "{count} hidden files in {key}, such as {first}, are passed over.",
    "values-below-range": "The values of these pictures reach {highest}: {bits} bits in 16. They are divided "
    "by 65,535; to use the whole range, set data.value_range = [0, {range_high}].",
    "own-normalization": "Pictures are normalized as {model} was trained: {values}.",
    "picture-turned-alone": "In {count} pairs, such as {first}, the orientation tag turns the picture or the "
    "mask alone; each is turned as it says.",
    "mask-borders-ignored": "Mask value {value} ({percent} % of the pixels) lies only between classes: these "
    "pixels have no loss.",
    "mask-much-ignored": "{percent} % of all mask pixels are ignored (value {value}).",
    "mask-classes-missing": "No mask has these classes: {classes}. data.allow_missing_classes permits that.",
    "records-skipped": "{count} records of the {data} data cannot be read and are left out.",
    "records-cut": "{count} records of the {data} data are longer than {max_length} tokens and were cut.",
    "records-without-answer": "{count} records of the {data} data have no answer to learn and are left out.",
    "no-chat-template": "The tokenizer has no chat template; a plain one is used.",
    "export-group-norm": "The exported network has GroupNorm where {library} has BatchNorm: its weights fit "
    "a network that was changed in the same way.",
    "attention-eager": "{model} has no sdpa attention in this version of transformers; eager is used.",
    "weights-missing": "{count} weights of {model} are not in its files and start at random, {first} first.",
    **TEXT_WARNINGS,
    "loss-not-proven": "{tokens} tokens of {vocabulary} logits are too many to hold at once: the loss in "
    "chunks is compared with itself, not with its definition.",
    "loss-chunked": "The loss is taken in chunks of tokens: the same sum and gradient, without holding"
    " {vocabulary} logits of every token at once.",
    "loss-not-chunked": "The logits of all tokens are held at once ({vocabulary} a token), since"
    " {reason}: the loss cannot be taken in chunks.",
    "merged-export-not-offered": "Weights trained with {method} are saved as an adapter, not merged.",
}

READINGS: Final = frozenset(
    {
        "nvml-library-missing",
        "nvml-driver-not-loaded",
        "nvml-driver-mismatch",
        "nvml-no-permission",
        "nvml-binding-missing",
        "nvml-failed",
        "gpu-lost",
        "gpu-not-matched",
        "metric-not-supported",
        "device-readings-not-available",
        "readings-failed",
    }
)
"""Warnings about what cannot be read here: they stand beside the readings, not across the page."""

METRICS: Final[dict[str, str]] = {
    "memory": "device memory",
    "memory_used": "used memory",
    "memory_reserved": "reserved memory",
    "memory_total": "total memory",
    "process_memory": "memory of this process",
    "torch_memory": "torch memory",
    "utilization": "utilisation",
    "temperature": "temperature",
    "power": "power",
    "energy": "energy",
    "process_rss": "process memory",
    "workers_rss": "memory of loader workers",
    "host_memory": "machine memory",
    "process_cpu": "CPU use of the process",
    "host_cpu": "CPU use",
}

FAILURES: Final[dict[str, str]] = {
    "out-of-memory": "Out of memory, and a smaller micro-batch did not help: {reason}",
    "import-error": "A module is missing in the trainer's interpreter: {reason}",
}
"""Only codes that need other words than the trainer's own sentence (`RunFailed.reason`)."""

OWN_SENTENCE: Final = frozenset(
    {"error", "exception", "usage", "refused", "library-raised", "non-finite-halt", "non-finite-in-a-row"}
)
"""Failures whose sentence the trainer makes itself, from what only it knows."""

ASKERS: Final[dict[str, str]] = {
    "schedule": "the schedule",
    "out-of-memory": "out of memory",
    "replay": "replayed after resume",
}
"""Who asked, when it was the trainer itself."""

SETTINGS: Final[dict[str, str]] = {
    "optimizer.learning_rate": "Learning rate",
    "optimizer.max_grad_norm": "Clip gradient norm",
    "optimizer.weight_decay": "Weight decay",
    "optimizer.beta2": "β₂",
    "optimizer.ema_decay": "EMA decay",
    "accumulation.micro_batch_size": "Micro-batch",
    "accumulation.gradient_accumulation_steps": "N",
}
