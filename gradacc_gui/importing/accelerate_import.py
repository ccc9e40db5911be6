"""accelerate's file: how processes are launched, and the little that concerns the run."""

from __future__ import annotations

from typing import Any, Final

from gradacc_gui.importing.deepspeed_import import batch_equation
from gradacc_gui.importing.key_reading import AUTO, KeyReading, Program
from gradacc_gui.importing.key_rows import KeyRows, changes, harmless, read
from gradacc_gui.importing.length_keys import MICRO, STEPS

ACCELERATE_ROWS: Final[KeyRows] = (
    read(
        mixed_precision=None,
        fp16=None,
        use_cpu=False,
        num_processes=-1,
        gradient_accumulation_steps=1,
        gradient_clipping=None,
        deepspeed_config=None,
        deepspeed_config_file=None,
        dynamo_config=None,
        dynamo_backend=None,
        megatron_lm_config=None,
    )
    | changes("They train in 8-bit floating point so. Here it is run.precision.", fp8_config=None)
    | harmless(
        "Concerns how processes are launched.",
        """
        compute_environment distributed_type debug machine_rank num_machines gpu_ids main_process_ip
        main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity fsdp_config
        parallelism_config mpirun_config ipex_config downcast_bf16 tpu_name tpu_zone tpu_use_cluster
        tpu_use_sudo tpu_vm tpu_env command_file commands use_gpu ec2_instance_type iam_role_name image_uri
        profile region base_job_name pytorch_version transformers_version py_version sagemaker_inputs_file
        sagemaker_metrics_file additional_args
        """,
    )
)
PRECISIONS: Final[dict[str, str]] = {
    "no": "fp32",
    "false": "fp32",
    "none": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
}


def _read_batch(reading: KeyReading) -> None:
    key = "gradient_accumulation_steps"
    inner = reading.table("deepspeed_config")
    asked: Any = reading.given.get(key) if reading.has(key) else inner.get(key)
    asked = 1 if asked in (AUTO, None) else asked
    if not isinstance(asked, (int, float)) or isinstance(asked, bool):
        asked = reading.as_number(key, asked)
    _, steps, _ = batch_equation(None, None, int(asked) if float(asked).is_integer() else asked)
    world = reading.whole("num_processes") if reading.has("num_processes") else 1
    if world is None or world < 1:
        reading.wrong("num_processes", world, "a whole number from 1")
    keys = tuple(name for name in (key, "deepspeed_config") if name in reading.given) or (key,)
    reading.put(STEPS, steps * world, *keys)
    reading.hold(
        "num_processes",
        STEPS,
        "One process here."
        if world == 1
        else f"N x {world}, so that the effective batch stays on one device.",
    )
    reading.ask(MICRO, "The file does not say how large a micro-batch is: the script does.", stand_in=1)
    reading.ask("run.epochs", "The file does not say how long to train.", stand_in=1)
    reading.ask("optimizer.learning_rate", "The file gives no learning rate: the script does.", stand_in=5e-5)


def _read_precision(reading: KeyReading) -> None:
    name = str(reading.given.get("mixed_precision", "fp16" if reading.flag("fp16") else "no")).lower()
    keys = tuple(key for key in ("mixed_precision", "fp16") if key in reading.given) or ("mixed_precision",)
    if name in PRECISIONS:
        reading.put("run.precision", PRECISIONS[name], *keys)
    else:
        reading.put("run.precision", "bf16")
        reading.leave("mixed_precision", f"They train in {name}. Here it is bf16.", to="run.precision")
    if reading.flag("use_cpu"):
        reading.put("run.device", "cpu", "use_cpu")


def _read_tables(reading: KeyReading) -> None:
    inner = reading.table("deepspeed_config") | {
        key: reading.given[key] for key in ("gradient_clipping",) if reading.has(key)
    }
    clip = inner.get("gradient_clipping")
    if clip not in (None, AUTO, 0):
        keys = [key for key in ("gradient_clipping", "deepspeed_config") if key in reading.given]
        reading.put("optimizer.max_grad_norm", reading.as_number("gradient_clipping", clip), *keys)
    reading.settle("deepspeed_config", "How state is spread over devices: one device holds all here.")
    if reading.text("deepspeed_config_file") or inner.get("deepspeed_config_file"):
        reading.say("A DeepSpeed file is named: import that file too if it sets an optimizer or a schedule.")
        reading.settle("deepspeed_config_file", "Import that file too.")
    backend: Any = reading.table("dynamo_config").get("dynamo_backend", reading.value("dynamo_backend"))
    if backend and str(backend).lower() != "no":
        reading.put(
            "run.compile", True, *(key for key in ("dynamo_config", "dynamo_backend") if key in reading.given)
        )
    megatron = reading.table("megatron_lm_config")
    clip = megatron.get("megatron_lm_gradient_clipping")
    if clip:
        reading.put(
            "optimizer.max_grad_norm",
            reading.as_number("megatron_lm_gradient_clipping", clip),
            "megatron_lm_config",
        )
    reading.settle("megatron_lm_config", "How the model is spread over devices.")


ACCELERATE: Final = Program(
    name="accelerate",
    rows=ACCELERATE_ROWS,
    readers=(_read_batch, _read_precision, _read_tables),
    signs=frozenset(
        {"compute_environment", "distributed_type", "machine_rank", "mixed_precision", "num_processes"}
    ),
)
