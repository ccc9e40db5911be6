"""A run's configuration: frozen, keyword-only, a title, unit and help on every field.

The form, the recipe file, the command line and the trainer all read these types; nothing else
says what a run can be. Imports neither torch, numpy nor Qt. `config_check` turns plain data into
a `RunConfig` or into a list of problems; `recipe` reads and writes files.

`Meta(title=…)` is the field's label, `description` its help, `extra["unit"]` its unit,
`extra["advanced"]` hides it behind *More*, `extra["path"]` is "file", "folder" or "any".
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from trainer_backend.goals import EarlyStoppingSection, Mode, PricesSection, TargetsSection
from trainer_backend.kinds import KINDS, Kind, LanguageModelData, LanguageModelTask
from trainer_backend.optimizer_table import OptimizerName
from trainer_backend.schedule_curves import CurveName, DecayShape
from trainer_backend.section import LARGEST, Count, Fraction, Positive, Samples, Section

__all__ = [
    "KINDS",
    "LARGEST",
    "Kind",
    "LanguageModelData",
    "LanguageModelTask",
    "RunConfig",
    "Section",
]


class RunSection(Section, frozen=True, kw_only=True):
    """What runs, where, how long."""

    name: Annotated[
        str,
        Meta(
            title="Name", description="Name in the runs list. Empty: the recipe's file name.", max_length=100
        ),
    ] = ""
    seed: Annotated[
        int,
        Meta(title="Seed", description="Every random number of the run comes from it.", ge=0, le=2**63 - 1),
    ] = 0
    device: Annotated[
        str,
        Meta(
            title="Device",
            description="auto takes the first GPU, else Apple's mps, else the CPU; cuda:1 is the second GPU.",
            pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
            examples=["auto", "cpu", "cuda", "cuda:1", "mps"],
        ),
    ] = "auto"
    devices: Annotated[
        int,
        Meta(
            title="Devices",
            description="How many of this machine's GPUs train together; with device = cpu, processes.",
            ge=1,
            le=1024,
            extra={"advanced": True},
        ),
    ] = 1
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        Meta(
            title="Precision",
            description="Precision of the forward pass; gradients always accumulate in fp32. auto: bf16 on"
            " a GPU that supports it, else fp32.",
        ),
    ] = "auto"
    deterministic: Annotated[
        bool,
        Meta(
            title="Deterministic",
            description="Use only kernels that give the same bits each time; slower on a GPU.",
            extra={"advanced": True},
        ),
    ] = False
    compile: Annotated[
        bool,
        Meta(
            title="torch.compile",
            description="Compile the model; the first steps take longer.",
            extra={"advanced": True},
        ),
    ] = False
    epochs: Annotated[
        Count | None,
        Meta(title="Epochs", description="Passes over the training data.", extra={"unit": "epochs"}),
    ] = None
    max_samples: Annotated[
        Samples | None,
        Meta(title="Samples", description="Stop after this many samples.", extra={"unit": "samples"}),
    ] = None
    max_optimizer_steps: Annotated[
        Samples | None,
        Meta(
            title="Optimizer steps",
            description="Stop after this many applied updates.",
            extra={"unit": "steps"},
        ),
    ] = None
    gradient_norm_every: Annotated[
        int,
        Meta(
            title="Micro-batch norms",
            description="Measure each micro-batch's gradient norm in every n-th window; 0 = never.",
            ge=0,
            le=LARGEST,
            extra={"unit": "windows", "advanced": True},
        ),
    ] = 16
    readings_every_s: Annotated[
        float,
        Meta(
            title="Readings",
            description="Time between readings of memory, power and utilization.",
            ge=0.05,
            le=3600,
            extra={"unit": "s", "advanced": True},
        ),
    ] = 0.5
    grace_s: Annotated[
        float,
        Meta(
            title="Grace",
            description="Seconds between SIGTERM and SIGKILL. A step that does not fit into them is"
            " dropped, and repeated on resume. docker stop gives 10.",
            ge=0,
            le=86_400,
            extra={"unit": "s", "advanced": True},
        ),
    ] = 10.0


class AccumulationPoint(Section, frozen=True, kw_only=True):
    """From this sample (or token) on, this many micro-batches (or samples) a window."""

    from_sample: Annotated[
        Annotated[int, Meta(ge=0, le=10**15)] | None, Meta(title="From sample", extra={"unit": "samples"})
    ] = None
    from_token: Annotated[
        Annotated[int, Meta(ge=0, le=10**18)] | None, Meta(title="From token", extra={"unit": "tokens"})
    ] = None
    steps: Annotated[Count | None, Meta(title="N")] = None
    effective_batch_size: Annotated[
        Samples | None, Meta(title="Effective batch", extra={"unit": "samples"})
    ] = None

    @property
    def start(self) -> int:
        """Where it begins, in samples or in tokens."""
        return self.from_sample if self.from_sample is not None else self.from_token or 0

    def is_reached(self, samples: int, tokens: int) -> bool:
        """Whether a run that consumed so much is there."""
        return self.start <= (samples if self.from_sample is not None else tokens)

    def steps_at(self, samples_a_round: int) -> int:
        """N, where one micro-batch on every device has so many samples; at least 1."""
        if self.steps is not None:
            return self.steps
        assert self.effective_batch_size is not None  # config_check has seen to it
        return max(1, round(self.effective_batch_size / samples_a_round))


class AccumulationSection(Section, frozen=True, kw_only=True):
    """How gradients of micro-batches become one update."""

    micro_batch_size: Annotated[
        int,
        Meta(
            title="Micro-batch size",
            description="Samples in memory at once.",
            ge=1,
            le=LARGEST,
            extra={"unit": "samples"},
        ),
    ] = 8
    gradient_accumulation_steps: Annotated[
        Count | None,
        Meta(
            title="Accumulation steps N",
            description="Micro-batches whose gradients are summed before one optimizer step.",
            extra={"unit": "micro-batches"},
        ),
    ] = None
    effective_batch_size: Annotated[
        Samples | None,
        Meta(
            title="Effective batch",
            description="May be given instead of N: then N = effective batch / (micro-batch x world).",
            extra={"unit": "samples"},
        ),
    ] = None
    tokens_per_step: Annotated[
        Annotated[int, Meta(ge=1, le=10**12)] | None,
        Meta(
            title="Tokens a step",
            description="A step ends as soon as its micro-batches have at least so many valid tokens, and"
            " after N of them at the latest. Empty: every step has N.",
            extra={"unit": "tokens", "advanced": True},
        ),
    ] = None
    normalization: Annotated[
        Literal["tokens", "samples"],
        Meta(
            title="Loss normalization",
            description="tokens: every valid token has the same weight. samples: every sample has.",
        ),
    ] = "tokens"
    tail: Annotated[
        Literal["step", "carry", "drop"],
        Meta(
            title="Last step of an epoch",
            description="When fewer than N micro-batches are left: step makes a smaller step, carry fills"
            " it up from the next epoch, drop leaves them out.",
        ),
    ] = "step"
    schedule: Annotated[
        tuple[AccumulationPoint, ...],
        Meta(
            title="Schedule of N",
            description="N as a function of the samples consumed. Empty: constant. Write 1000000 tokens or"
            " 256 samples to count the start in tokens, or to give the effective batch instead of N.",
            extra={"advanced": True},
        ),
    ] = ()
    learning_rate_rule: Annotated[
        Literal["none", "sqrt", "linear"],
        Meta(
            title="Learning rate with N",
            description="What the schedule of N does to the learning rate when the effective batch becomes"
            " κ times as large: nothing, times √κ (Adam), times κ (SGD).",
            extra={"advanced": True},
        ),
    ] = "none"
    beta2_rule: Annotated[
        Literal["none", "power"],
        Meta(
            title="β₂ with N",
            description="power: β₂ to the power of κ, so the second moment keeps its half-life in samples.",
            extra={"advanced": True},
        ),
    ] = "none"
    beta2_floor: Annotated[
        float,
        Meta(
            title="β₂ at least",
            description="What the rule for β₂ never goes below. A β₂ that begins below it is its own floor.",
            ge=0,
            lt=1,
            extra={"advanced": True},
        ),
    ] = 0.95
    decay_rule: Annotated[
        Literal["none", "linear"],
        Meta(
            title="Weight decay with N",
            description="linear: times κ, so the decay per sample stays.",
            extra={"advanced": True},
        ),
    ] = "none"
    ema_rule: Annotated[
        Literal["none", "power"],
        Meta(
            title="EMA with N",
            description="power: EMA decay to the power of κ, so the average keeps its half-life in samples.",
            extra={"advanced": True},
        ),
    ] = "none"
    non_finite: Annotated[
        Literal["skip", "drop", "halt"],
        Meta(
            title="NaN or infinity",
            description="skip the update; drop the micro-batch and repeat the step without it; or halt.",
        ),
    ] = "skip"
    gradient_dtype: Annotated[
        Literal["fp32", "parameter"],
        Meta(
            title="Gradient buffers",
            description="fp32 is exact; the parameter's own type saves memory and is inexact in bf16 "
            "and fp16.",
            extra={"advanced": True},
        ),
    ] = "fp32"
    verdict: Annotated[
        Literal["equal", "per-micro-batch", "not-equal"],
        Meta(
            title="Certificate",
            description="Expected result of verify: N micro-batches equal one large batch; or equal up "
            "to what "
            "is defined per micro-batch (BatchNorm, load balancing); or not, and you know why.",
            extra={"advanced": True},
        ),
    ] = "equal"

    @property
    def ends_by_tokens(self) -> bool:
        """Whether a window ends at a number of tokens, so that its N is not known before."""
        return self.tokens_per_step is not None


class OptimizerSection(Section, frozen=True, kw_only=True):
    """The update, once a window."""

    name: Annotated[
        OptimizerName,
        Meta(title="Optimizer", description="Makes one update per step; fused where the device supports it."),
    ] = "adamw"
    learning_rate: Annotated[
        float, Meta(title="Learning rate", description="Peak, after warm-up.", ge=0, le=1e6)
    ] = 1e-3
    weight_decay: Annotated[
        float,
        Meta(
            title="Weight decay",
            description="Applied once per optimizer step; built-in kinds leave out norms and biases.",
            ge=0,
            le=1e6,
        ),
    ] = 0.0
    betas: Annotated[
        tuple[Annotated[float, Meta(ge=0, lt=1)], Annotated[float, Meta(ge=0, lt=1)]],
        Meta(title="Betas", description="Adam's decay of the mean and of the mean square."),
    ] = (0.9, 0.95)
    eps: Annotated[
        float,
        Meta(
            title="Epsilon",
            description="Added to Adam's denominator.",
            gt=0,
            le=1,
            extra={"advanced": True},
        ),
    ] = 1e-8
    momentum: Annotated[float, Meta(title="Momentum", description="SGD only.", ge=0, lt=1)] = 0.0
    nesterov: Annotated[
        bool, Meta(title="Nesterov", description="SGD with momentum only.", extra={"advanced": True})
    ] = False
    max_grad_norm: Annotated[
        Positive | None,
        Meta(
            title="Clip gradient norm",
            description="Applied to the averaged gradient, before the step. Empty: no clipping.",
        ),
    ] = None
    clip_value: Annotated[
        Positive | None,
        Meta(
            title="Clip gradient values",
            description="Largest size of one number of the averaged gradient, after its norm was clipped.",
            extra={"advanced": True},
        ),
    ] = None
    ema_decay: Annotated[
        Fraction | None,
        Meta(
            title="EMA of the weights",
            description="Decay per optimizer step. Empty: no average. Evaluations use the average.",
            extra={"advanced": True},
        ),
    ] = None


class ScheduleSection(Section, frozen=True, kw_only=True):
    """The learning rate over samples consumed, so that changing N does not distort it."""

    kind: Annotated[
        CurveName,
        Meta(title="Schedule", description="How the learning rate changes after the warm-up."),
    ] = "constant"
    samples: Annotated[
        Samples | None,
        Meta(
            title="Horizon",
            description="Where the schedule ends. Empty: the run's own length.",
            extra={"unit": "samples"},
        ),
    ] = None
    warmup_samples: Annotated[
        Annotated[int, Meta(ge=0, le=10**15)] | None,
        Meta(
            title="Warm-up",
            description="Samples over which the learning rate rises.",
            extra={"unit": "samples"},
        ),
    ] = None
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0, le=10**9)] | None,
        Meta(
            title="Warm-up",
            description="Optimizer steps of the first effective batch over which the learning rate rises.",
            extra={"unit": "steps"},
        ),
    ] = None
    warmup_ratio: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(
            title="Warm-up",
            description="Share of the schedule over which the learning rate rises, in whole optimizer steps.",
        ),
    ] = None
    warmup_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=10**15)] | None,
        Meta(
            title="Warm-up",
            description="Tokens (samples, where the task has none) over which the learning rate rises; "
            "the curve starts at the first sample.",
            extra={"unit": "tokens"},
        ),
    ] = None
    warmup_from_ratio: Annotated[
        float,
        Meta(
            title="Warm-up from",
            description="Learning rate at the start of the warm-up, as a share of its peak.",
            ge=0,
            le=1,
            extra={"advanced": True},
        ),
    ] = 0.0
    final_ratio: Annotated[
        float,
        Meta(title="Final ratio", description="Learning rate at the end over its peak.", ge=0, le=1),
    ] = 0.1
    cycles: Annotated[
        Annotated[float, Meta(gt=0, le=1000)] | None,
        Meta(
            title="Cycles",
            description="Waves of the cosine (0.5 falls once); with restarts, how often it falls.",
            extra={"advanced": True},
        ),
    ] = None
    power: Annotated[
        float,
        Meta(title="Power", description="1 is linear, 2 a parabola.", gt=0, le=100),
    ] = 1.0
    timescale_samples: Annotated[
        Samples | None,
        Meta(
            title="Time scale",
            description="After the warm-up the rate falls as 1 / sqrt(samples / time scale).",
            extra={"unit": "samples", "advanced": True},
        ),
    ] = None
    decay_ratio: Annotated[
        float,
        Meta(
            title="Decay",
            description="Share of the schedule, at its end, in which the rate falls.",
            gt=0,
            le=1,
        ),
    ] = 0.1
    decay_shape: Annotated[
        DecayShape, Meta(title="Decay shape", description="How the rate falls in that share.")
    ] = "1-sqrt"
    milestones: Annotated[
        tuple[Samples, ...],
        Meta(title="Milestones", description="Samples at which the rate falls.", extra={"unit": "samples"}),
    ] = ()
    milestone_factor: Annotated[
        float,
        Meta(
            title="Milestone factor",
            description="The rate is multiplied by this at each milestone.",
            gt=0,
            le=1,
        ),
    ] = 0.1


DEFAULT_EVERY_MINUTES: Final = 10.0
"""Between checkpoints, where a recipe says nothing: what a crash may cost."""


class CheckpointSection(Section, frozen=True, kw_only=True):
    """When the run is saved; always on window borders, and at a stop and at the end."""

    every_minutes: Annotated[
        Positive | Literal["never"] | None,
        Meta(
            title="Every",
            description='Minutes between checkpoints. Empty: 10, unless samples are given; "never": '
            "only at a stop and at the end.",
            extra={"unit": "min"},
        ),
    ] = None
    every_samples: Annotated[
        Samples | None,
        Meta(title="Every", description="Samples between checkpoints.", extra={"unit": "samples"}),
    ] = None
    keep: Annotated[
        int, Meta(title="Keep", description="Newest checkpoints that stay on disk.", ge=1, le=10_000)
    ] = 3

    keep_best: Annotated[
        int,
        Meta(
            title="Keep the best",
            description="Checkpoints with the best values of the metric, saved at evaluations and kept beside"
            " the newest ones.",
            ge=0,
            le=10_000,
        ),
    ] = 0
    metric: Annotated[
        str,
        Meta(
            title="Best by",
            description="loss (of the validation data), or a metric of the task.",
            min_length=1,
            extra={"advanced": True},
        ),
    ] = "loss"
    mode: Annotated[
        Mode, Meta(title="Better is", description="min: smaller; max: larger.", extra={"advanced": True})
    ] = "min"
    export_best: Annotated[
        bool,
        Meta(
            title="Export the best",
            description="At the run's end export the best checkpoint instead of the last state.",
            extra={"advanced": True},
        ),
    ] = False
    before_changes: Annotated[
        bool,
        Meta(
            title="Before changes",
            description="Save before a setting is changed live, so that the change can be taken back.",
            extra={"advanced": True},
        ),
    ] = False

    @property
    def minutes(self) -> float | None:
        """Minutes between checkpoints; None where samples count, or none are wanted on the way."""
        if self.every_minutes is None:
            return DEFAULT_EVERY_MINUTES if self.every_samples is None else None
        return None if self.every_minutes == "never" else self.every_minutes


class EvaluationSection(Section, frozen=True, kw_only=True):
    """Validation loss on data the run does not train on."""

    every_samples: Annotated[
        Samples | None,
        Meta(title="Every", description="Empty: never.", extra={"unit": "samples"}),
    ] = None
    max_samples: Annotated[
        Samples | None,
        Meta(
            title="At most",
            description="Samples per evaluation. Empty: all.",
            extra={"unit": "samples"},
        ),
    ] = None


class NotifySection(Section, frozen=True, kw_only=True):
    """Who is told of alerts and ends, by the trainer itself, with or without a window."""

    webhook: Annotated[
        str,
        Meta(
            title="Webhook",
            description="Address that gets each message as JSON by POST. Empty: none.",
            pattern=r"^(https?://\S+)?$",
            examples=["https://hooks.example.com/T0/B0/xyz"],
        ),
    ] = ""
    template: Annotated[
        str,
        Meta(
            title="Webhook body",
            description="JSON in whose texts {text}, {occasion}, {name}, {run}, {host}, {step}, {samples} and"
            " {code} are filled in. Empty: a body that Slack reads.",
            extra={"advanced": True},
        ),
    ] = ""
    command: Annotated[
        str,
        Meta(
            title="Command",
            description="Called for each message, with it as JSON on its standard input and in GRADACC_TEXT,"
            " GRADACC_STEP and so on. Empty: none.",
        ),
    ] = ""
    on: Annotated[
        tuple[Literal["finished", "failed", "alert", "gate"], ...],
        Meta(title="Tell of", description="Any of finished, failed, alert, gate."),
    ] = ("finished", "failed", "alert", "gate")


class PublishedSection(Section, frozen=True, kw_only=True):
    """What a paper or a model card reports, beside what is run here; it changes nothing in the run.

    Its tables mirror the recipe's own ([published.optimizer] learning_rate = 3e-4), but their values
    are free: a published recipe may name what this trainer does not have.
    """

    source: Annotated[
        str, Meta(title="Source", description="Where it was published: title, table, address.")
    ] = ""
    run: Annotated[dict[str, Any], Meta(title="Run")] = {}
    task: Annotated[dict[str, Any], Meta(title="Task")] = {}
    data: Annotated[dict[str, Any], Meta(title="Data")] = {}
    accumulation: Annotated[dict[str, Any], Meta(title="Accumulation")] = {}
    optimizer: Annotated[dict[str, Any], Meta(title="Optimizer")] = {}
    schedule: Annotated[dict[str, Any], Meta(title="Schedule")] = {}
    results: Annotated[
        dict[str, Any], Meta(title="Results", description="What it reached, such as validation_loss.")
    ] = {}


class RunConfig(Section, frozen=True, kw_only=True):
    """Everything a run is asked to be. `task` and `data` are those of the kind (`KINDS`)."""

    run: RunSection = RunSection()
    task: Section = LanguageModelTask()
    data: Section = LanguageModelData()
    accumulation: AccumulationSection = AccumulationSection(gradient_accumulation_steps=4)
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    checkpoint: CheckpointSection = CheckpointSection()
    evaluation: EvaluationSection = EvaluationSection()
    early_stopping: EarlyStoppingSection = EarlyStoppingSection()
    targets: TargetsSection = TargetsSection()
    notify: NotifySection = NotifySection()
    prices: PricesSection = PricesSection()
    published: PublishedSection = PublishedSection()

    @property
    def kind(self) -> str:
        """The task's kind, a key of `KINDS`."""
        kind: str = self.task.kind  # type: ignore[attr-defined]  # every task section has one
        return kind

    @property
    def accumulation_steps(self) -> int:
        """N at sample 0, derived from the effective batch where that is what was given."""
        asked = self.accumulation
        if asked.schedule and asked.schedule[0].start == 0:
            return asked.schedule[0].steps_at(asked.micro_batch_size * self.run.devices)
        if asked.gradient_accumulation_steps is not None:
            return asked.gradient_accumulation_steps
        assert asked.effective_batch_size is not None  # config_check has seen to it
        return asked.effective_batch_size // (asked.micro_batch_size * self.run.devices)

    @property
    def effective_batch(self) -> int:
        """micro_batch_size x N x world, in samples."""
        return self.accumulation.micro_batch_size * self.accumulation_steps * self.run.devices
