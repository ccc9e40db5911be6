"""Codes that the trainer reports, and their sentences: the one list to translate. No Qt.

{names} are the values that come with a code. A sentence says what happened and what to do about it.
"""

from __future__ import annotations

from typing import Final

from trainer_backend.kinds.task_warnings import TASK_WARNINGS

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
    "launcher": "torchrun, which had started its ranks, ended; a checkpoint was saved",
    "moved": "the run's folder was moved or removed",
    "target": "a target was missed; a checkpoint was saved",
    "early-stopping": "its metric had stopped getting better",
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
    "RollBack": "A rollback",
    "Stop": "A stop",
    "AnswerGate": "An answer",
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
    "no-gate": "the run asks nothing",
    "no-checkpoint": "there is no checkpoint to go back to",
    "library-counts-updates-ahead": "N = {after} is below the planned N, for which its updates are counted",
    "epoch-ended-early": "the epoch ended before step {step}, where the library's counter would have allowed "
    "it; ask again",
    "library-decides": "the library that trains decides this, not gradacc",
    "rolling-back": "the run is being rolled back; ask again when that is done",
}

TARGETS: Final[dict[str, tuple[str, str, str]]] = {
    "targets.peak_memory": ("peak memory", "at most", "GiB"),
    "targets.step_time": ("median step time", "at most", "s"),
    "targets.throughput": ("median throughput", "at least", "samples/s"),
    "targets.validation_loss": ("validation loss", "at most", ""),
    "targets.cost": ("energy", "at most", "kWh"),
    "targets.step_time_p95": ("95th percentile of the step time", "at most", "s"),
    "targets.money": ("money", "at most", ""),
    "targets.time_to_finish": ("time of the run", "at most", "h"),
}
"""What a target of a recipe is about, which bound it is, and its unit."""

WARNINGS: Final[dict[str, str]] = {
    "target-met": "Target met: {quantity} {reached} ({bound} {target})",
    "target-missed": "Target missed: {quantity} {reached} ({bound} {target})",
    "target-not-measured": "The target on {name} cannot be judged: evaluations measure {known}.",
    "metric-not-measured": "{key} names {name}, which evaluations do not measure; they measure {known}.",
    "no-way-back": "The target {key} was missed, and there is no checkpoint to go back to.",
    "best-exported": "The state of step {step} was exported, the best by its metric.",
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
    "nvml-binding-missing": "The package nvidia-ml-py is not installed in the trainer's interpreter, so a"
    " GPU's readings are not shown.",
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
    "rank-lost": "A rank's process ended in step {step}. torchrun starts all ranks again from the last"
    " checkpoint, as often as it was told to.",
    "checkpoint-not-saved": "The checkpoint at step {step} could not be saved ({reason}); training "
    "continues. "
    "Free some disk space.",
    "last-checkpoint-waits": "The last checkpoint (step {step}) cannot be saved yet ({reason}). Free some "
    "disk space: it is tried again for a minute.",
    "border-not-saved": "What was trained since the newest checkpoint, up to step {step}, is lost: it could "
    "not be saved after the failure ({reason}).",
    "recipe-changed": "{key} is {after} from here on; it was {before} when the checkpoint was saved.",
    "length-changed": "{key} is {after}; it was {before}. The learning rate's schedule still ends "
    "where it did.",
    "data-not-compared": "It is not known whether the training data is still the same.",
    "data-changed": "The training data has as many samples as in the checkpoint, but different ones.",
    "data-files-changed": "Files of the training data have other names or sizes than when the checkpoint was "
    "saved; the samples that were compared are the same.",
    "data-files-touched": "Files of the training data were written anew since the checkpoint; their "
    "sizes, and the samples that were compared, are the same.",
    "torch-changed": "torch is {after}; the checkpoint was saved by {before}, so last bits may differ.",
    "threads-changed": "torch computes with {after} threads instead of {before}, so last bits may differ.",
    "history-lost": "The journal of this run was lost. The run continues from its checkpoint of step {step};"
    " what happened before is not shown.",
    "checkpoint-damaged": "The checkpoint of step {step} is damaged ({reason}); trying an older one.",
    "notify-failed": "The {what} of [notify] failed ({reason}); the run continues, and later messages are "
    "still tried.",
    "replay-declined": "From step {step} on, changes made before the interruption are not applied again.",
    **TASK_WARNINGS,
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
    "import-error": "A module is not installed in the trainer's interpreter: {reason}",
}
"""Only codes that need other words than the trainer's own sentence (`RunFailed.reason`)."""

OWN_SENTENCE: Final = frozenset(
    {"error", "exception", "usage", "refused", "library-raised", "non-finite-halt", "non-finite-in-a-row"}
)
"""Failures whose sentence the trainer makes itself, from what only it knows."""

ASKERS: Final[dict[str, str]] = {
    "target": "a missed target",
    "timeout": "no answer in time",
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
