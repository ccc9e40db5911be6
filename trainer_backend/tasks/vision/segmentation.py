"""The task of kind "segmentation".

Letters: b images, k classes, c channels, h height, w width.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from PIL import Image

from trainer_backend.errors import UsageError
from trainer_backend.kinds import KINDS
from trainer_backend.kinds.segmentation import SegmentationData, SegmentationTask
from trainer_backend.tasks import Datasets, LossTerm
from trainer_backend.tasks.built_in import BuiltIn
from trainer_backend.tasks.vision import export, normalization
from trainer_backend.tasks.vision.batch_norm import treat_batch_norm
from trainer_backend.tasks.vision.files import propose_range
from trainer_backend.tasks.vision.masks import MaskRules, MaskSurvey, parse_colours, parse_values
from trainer_backend.tasks.vision.pictures import PictureRules, picture
from trainer_backend.tasks.vision.scenes import Pair, SceneRules, Scenes, find_pairs, usable_pairs

CROSS_ENTROPY: Final = "cross-entropy"
DICE: Final = "dice"
FOCAL: Final = "focal"
MULTIPLE: Final = 32
MOST_PIXELS_LOOKED_AT: Final = 25_000_000
"""Networks halve an image up to five times."""
PALETTE: Final = torch.tensor(
    [
        [0, 114, 178],
        [230, 159, 0],
        [0, 158, 115],
        [204, 121, 167],
        [213, 94, 0],
        [86, 180, 233],
        [240, 228, 66],
    ]
)
"""Okabe and Ito's colours, told apart by colour-blind eyes."""


class Segmentation(BuiltIn[SegmentationTask, SegmentationData]):
    """Trains a class for every pixel. See `trainer_backend.tasks.Task` for what each method gives."""

    def __post_init__(self) -> None:
        task = self.task
        if not task.cross_entropy and not task.dice and not task.focal:
            message = "task.cross_entropy, task.dice and task.focal are all 0. Set one above 0."
            raise UsageError(message)
        if task.class_weights and len(task.class_weights) != task.classes:
            message = f"task.class_weights has {len(task.class_weights)} values for {task.classes} classes."
            raise UsageError(message)
        self._class_weights = torch.tensor(task.class_weights) if task.class_weights else None
        data = self.data
        max_pixels = round(data.max_megapixels * 1e6)
        self.rules = SceneRules(
            picture=PictureRules(
                channels=task.channels,
                value_range=normalization.checked_range(data.value_range),
                page=data.page,
                nodata=data.nodata,
                max_pixels=max_pixels,
            ),
            mask=MaskRules(
                classes=task.classes,
                ignore_value=task.ignore_value,
                values=parse_values(data.mask_values),
                colours=parse_colours(data.mask_colours),
                max_pixels=max_pixels,
            ),
            normalization=self._normalization(),
        )
        self.survey = MaskSurvey()
        """What the masks of the last `datasets()` held."""
        self.pairs: list[Pair] = []
        """Which files it read."""

    # ----------------------------------------------------------------- model and data

    def model(self) -> torch.nn.Module:
        """The network, its BatchNorm layers treated as asked. Raises UsageError."""
        task = self.task
        make = _torchvision_model if task.architecture.startswith("torchvision-") else _smp_model
        model = make(task)
        return treat_batch_norm(model, task.batch_norm, self.accumulation_steps)

    def _normalization(self) -> normalization.Normalization | None:
        """As the recipe states it, else as a pretrained encoder was trained; None: from 0 to 1."""
        task = self.task
        found = normalization.stated(task.mean, task.std, task.channels)
        if found is not None or not task.pretrained or task.architecture.startswith("torchvision-"):
            return found
        found = self.own_normalization()
        if found is not None:
            self.warn("own-normalization", {"model": task.encoder, "values": found.words()})
        return found

    def own_normalization(self) -> normalization.Normalization | None:
        """What the encoder was trained with on ImageNet; None where that is not known."""
        encoders: Any = importlib.import_module("segmentation_models_pytorch.encoders")
        try:
            parameters = encoders.get_preprocessing_params(self.task.encoder, "imagenet")
        except (KeyError, ValueError):  # an unknown encoder: `model` says which names there are
            return None
        return normalization.of_encoder(parameters)

    def datasets(self) -> Datasets:
        """Tiles (or whole images) with their masks; images are held out, never tiles of one image."""
        data = self.data
        pairs, held = self.list_files()
        # One survey: a class may be in one of them only.
        usable, self.rules, self.survey = usable_pairs(
            self.pairs,
            self.rules,
            broken=data.broken,
            allow_missing=data.allow_missing_classes,
            warn=self.warn,
        )
        propose_range([image for image, _ in usable], self.rules.picture, self.warn)
        kept = set(usable)
        pairs, held = [pair for pair in pairs if pair in kept], [pair for pair in held if pair in kept]
        if not data.validation_images:
            pairs, held = self._hold_out(pairs)
        return Datasets(
            train=Scenes(pairs, self.task, self.rules, augment=True),
            validation=Scenes(held, self.task, self.rules, augment=False) if held else None,
        )

    def list_files(self) -> tuple[list[Pair], list[Pair]]:
        """Training and validation pictures with their masks, none opened; `pairs` is all of them."""
        data = self.data
        pairs = self._pairs(data.images, data.masks, ("data.images", "data.masks"))
        held: list[Pair] = []
        if data.validation_images:
            keys = ("data.validation_images", "data.validation_masks")
            held = self._pairs(data.validation_images, data.validation_masks or data.masks, keys)
        self.pairs = list(dict.fromkeys([*self.spread(pairs), *self.spread(held)]))
        return pairs, held

    def _pairs(self, images: str, masks: str, keys: tuple[str, str]) -> list[Pair]:
        return find_pairs(self.path(images), self.path(masks), keys, self.warn, self.data.mask_pattern)

    def _hold_out(self, pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
        if not self.data.validation_fraction:
            return pairs, []
        if len(pairs) < 2:
            self.warn("no-validation-data", {"samples": len(pairs)})
            return pairs, []
        order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(self.seed)).tolist()
        count = max(1, round(len(pairs) * self.data.validation_fraction))
        return [pairs[number] for number in sorted(order[count:])], [
            pairs[number] for number in sorted(order[:count])
        ]

    def collate(self, samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Images fp32 (b, c, h, w), masks int64 (b, h, w): padded, the padding without a loss."""
        height = max(-(-image.shape[1] // MULTIPLE) * MULTIPLE for image, _ in samples)
        width = max(-(-image.shape[2] // MULTIPLE) * MULTIPLE for image, _ in samples)
        images, masks = [], []
        for image_chw, mask_hw in samples:
            padding = (0, width - image_chw.shape[2], 0, height - image_chw.shape[1])
            images.append(F.pad(image_chw, padding))
            masks.append(F.pad(mask_hw, padding, value=self.ignored))
        return {"images": torch.stack(images), "masks": torch.stack(masks)}

    @property
    def ignored(self) -> int:
        """What a pixel without a loss is in a batch's masks."""
        return self.rules.mask.ignored

    # ------------------------------------------------------------------------- losses

    def weights(self, batch: dict[str, torch.Tensor]) -> dict[str, float]:
        """Pixels (or their class weights) for cross-entropy, images for Dice."""
        masks_bhw = batch["masks"]
        valid_bhw = masks_bhw != self.ignored
        weights = {}
        if self.task.cross_entropy:
            weights[CROSS_ENTROPY] = float(self._pixel_weight(masks_bhw, valid_bhw))
        if self.task.focal:
            weights[FOCAL] = float(self._pixel_weight(masks_bhw, valid_bhw))
        if self.task.dice:
            weights[DICE] = float(_images_with_pixels(valid_bhw).sum())
        return weights

    def _pixel_weight(self, masks_bhw: torch.Tensor, valid_bhw: torch.Tensor) -> torch.Tensor:
        """0-d, fp64: valid pixels, each as much as its class weighs."""
        if self._class_weights is None:
            return valid_bhw.sum(dtype=torch.float64)
        classes_bhw = torch.where(valid_bhw, masks_bhw, 0)
        weights_bhw = self._class_weights.to(masks_bhw.device)[classes_bhw] * valid_bhw
        return weights_bhw.sum(dtype=torch.float64)

    def loss(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[LossTerm]:
        """Cross-entropy over pixels and Dice over images, each a sum with its own denominator."""
        task, masks_bhw = self.task, batch["masks"]
        logits_bkhw = _logits(model, batch["images"])
        logits_bkhw = logits_bkhw if logits_bkhw.dtype == torch.float64 else logits_bkhw.float()
        log_found_bkhw = logits_bkhw.log_softmax(1)  # both terms go on from it
        valid_bhw = masks_bhw != self.ignored
        terms = []
        if task.cross_entropy:
            total = self._cross_entropy(log_found_bkhw, masks_bhw) * task.cross_entropy
            terms.append(LossTerm(total, self._pixel_weight(masks_bhw, valid_bhw), CROSS_ENTROPY))
        if task.focal:
            total = self._focal(log_found_bkhw, masks_bhw, valid_bhw) * task.focal
            terms.append(LossTerm(total, self._pixel_weight(masks_bhw, valid_bhw), FOCAL))
        if task.dice:
            images_b = _images_with_pixels(valid_bhw)
            total = self._dice(log_found_bkhw, masks_bhw, valid_bhw, images_b) * task.dice
            per_micro_batch = task.dice_over == "micro-batch"
            terms.append(LossTerm(total, images_b.sum(), DICE, per_micro_batch=per_micro_batch))
        return terms

    def _cross_entropy(self, log_found_bkhw: torch.Tensor, masks_bhw: torch.Tensor) -> torch.Tensor:
        weights_k = self._class_weights
        return F.nll_loss(
            log_found_bkhw,
            masks_bhw,
            weight=None if weights_k is None else weights_k.to(log_found_bkhw),
            ignore_index=self.ignored,
            reduction="sum",
        )

    def _focal(
        self, log_found_bkhw: torch.Tensor, masks_bhw: torch.Tensor, valid_bhw: torch.Tensor
    ) -> torch.Tensor:
        """Sum over pixels of w · (1 - p)^gamma · -log p, p of the truth (Lin et al. 2017, eq. 5)."""
        classes_bhw = torch.where(valid_bhw, masks_bhw, 0)
        log_true_bhw = log_found_bkhw.gather(1, classes_bhw[:, None])[:, 0]
        easy_bhw = (1 - log_true_bhw.exp()).clamp_min(0) ** self.task.focal_gamma
        losses_bhw = -easy_bhw * log_true_bhw
        if self._class_weights is not None:
            losses_bhw = losses_bhw * self._class_weights.to(losses_bhw)[classes_bhw]
        return (losses_bhw * valid_bhw).sum()

    def _dice(
        self,
        log_found_bkhw: torch.Tensor,
        masks_bhw: torch.Tensor,
        valid_bhw: torch.Tensor,
        images_b: torch.Tensor,
    ) -> torch.Tensor:
        """Sum over images of 1 - mean over classes of soft Dice (Milletari et al. 2016, linear form).

        Large images make it a matter of passes over (b, k, h, w): no one-hot of int64, no sum of both.
        """
        classes_k11 = torch.arange(self.task.classes, device=masks_bhw.device)[:, None, None]
        truth_bkhw = torch.where(valid_bhw, masks_bhw, -1)[:, None] == classes_k11
        truth_bkhw = truth_bkhw.to(log_found_bkhw)
        found_bkhw = log_found_bkhw.exp() * valid_bhw[:, None].to(log_found_bkhw)
        over = (2, 3) if self.task.dice_over == "image" else (0, 2, 3)
        overlap = (truth_bkhw * found_bkhw).sum(over)
        both = truth_bkhw.sum(over) + found_bkhw.sum(over)
        smooth = 1.0  # one pixel: a class that is nowhere and not found costs nothing
        dice = 1 - ((2 * overlap + smooth) / (both + smooth)).mean(-1)
        if self.task.dice_over == "image":
            return (dice * images_b.to(dice)).sum()
        return dice * images_b.sum().to(dice)

    # --------------------------------------------------------------------- evaluation

    def evaluate(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, LossTerm]:
        """Pixel accuracy, and intersection over union of each class (sums over sums)."""
        found = _logits(model, batch["images"]).argmax(1)
        truth = batch["masks"]
        valid = truth != self.ignored
        metrics = {"pixel_accuracy": LossTerm(((found == truth) & valid).sum().double(), valid.sum())}
        for number in range(self.task.classes):
            is_found, is_true = (found == number) & valid, (truth == number) & valid
            metrics[f"iou_{number}"] = LossTerm(
                (is_found & is_true).sum().double(), (is_found | is_true).sum()
            )
        return metrics

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Mean intersection over union, over the classes that occur."""
        unions = [value for name, value in metrics.items() if name.startswith("iou_")]
        return metrics | ({"mean_iou": sum(unions) / len(unions)} if unions else {})

    @torch.no_grad()
    def artifacts(self, model: torch.nn.Module, folder: Path) -> list[tuple[str, Path, str]]:
        """Image, truth and prediction side by side, of the first validation images."""
        validation = self._validation
        if validation is None or not self.task.overlays:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        made = []
        device = next(model.parameters()).device
        for index in range(min(self.task.overlays, len(validation))):
            batch = self.collate([validation[index]])
            found = _logits(model, batch["images"].to(device)).argmax(1)[0].cpu()
            image_chw = batch["images"][0]
            if self.rules.normalization is not None:
                image_chw = self.rules.normalization.undo(image_chw)
            picture = _side_by_side(image_chw, batch["masks"][0], found, ignore_value=self.ignored)
            path = folder / f"overlay-{index:02d}.png"
            Image.fromarray(picture.movedim(0, -1).numpy()).save(path)
            made.append(("image", path, f"{validation.name(index)}: image, truth, prediction"))
        return made

    @torch.no_grad()
    def recognise(
        self, model: torch.nn.Module, path: Path, folder: Path
    ) -> tuple[tuple[tuple[str, float], ...], Path | None]:
        """Shares of the pixels of a picture by class, and a file with picture and classes side by side.

        Raises BrokenImageError, and UsageError for a picture that is too large to be looked at whole.
        """
        values_chw = picture(path, self.rules.picture).values_chw
        if values_chw.shape[1] * values_chw.shape[2] > MOST_PIXELS_LOOKED_AT:
            megapixels = values_chw.shape[1] * values_chw.shape[2] / 1e6
            most = MOST_PIXELS_LOOKED_AT / 1e6
            message = (
                f"{path} has {megapixels:.0f} megapixels; up to {most:.0f} can be looked at. Cut a part out."
            )
            raise UsageError(message)
        height, width = values_chw.shape[1:]
        normalize = self.rules.normalization
        image_chw = values_chw if normalize is None else normalize.apply(values_chw)
        batch = self.collate([(image_chw, torch.zeros(height, width, dtype=torch.long))])
        device = next(model.parameters()).device
        found_hw = _logits(model, batch["images"].to(device)).argmax(1)[0, :height, :width].cpu()
        shown = _side_by_side(values_chw, found_hw, ignore_value=self.ignored)
        target = folder / "seen.png"
        Image.fromarray(shown.movedim(0, -1).numpy()).save(target)
        counts = torch.bincount(found_hw.flatten(), minlength=self.task.classes).tolist()
        ranked = sorted(((str(k), n / (height * width)) for k, n in enumerate(counts)), key=lambda e: -e[1])
        return tuple(ranked), target

    exports: Final = ("model",)

    def hand_over(self, model: torch.nn.Module, what: str, folder: Path) -> Path:
        """Write the network as `export` does, into `folder` itself."""
        assert what in self.exports
        return export.moved_up(self.export(model, folder)[0], folder)

    def export(self, model: torch.nn.Module, folder: Path) -> list[Path]:
        """The network as its library loads it, its classes, and what its pictures go through."""
        task = self.task
        target = export.save_segmentation(model, folder, task.architecture, task.encoder)
        export.describe_input(
            target,
            classes=task.classes,
            rules=self.rules.picture,
            normalize=self.rules.normalization,
            batch_norm=task.batch_norm,
            tile_size=task.tile_size,
            ignore_value=self.rules.mask.ignore_value,
        )
        if task.batch_norm == "group-norm":
            self.warn("export-group-norm", {"library": "segmentation-models-pytorch"})
        return [target]

    @functools.cached_property
    def _validation(self) -> Scenes | None:
        found: Scenes | None = self.datasets().validation
        return found


def _logits(model: torch.nn.Module, images_bchw: torch.Tensor) -> torch.Tensor:
    """(b, k, h, w); torchvision's models give a table."""
    given = model(images_bchw)
    logits: torch.Tensor = given["out"] if isinstance(given, dict) else given
    return logits


def _images_with_pixels(valid_bhw: torch.Tensor) -> torch.Tensor:
    """(b,), fp64: 1 for an image with a valid pixel."""
    return valid_bhw.flatten(1).any(1).double()


def _side_by_side(image_chw: torch.Tensor, *masks_hw: torch.Tensor, ignore_value: int) -> torch.Tensor:
    """The picture, then each of m masks over it: uint8 (3, h, (1 + m) w)."""
    shown_chw = image_chw[:3] if image_chw.shape[0] >= 3 else image_chw[:1].expand(3, -1, -1)
    plain = (shown_chw * 255).clamp(0, 255)

    def laid_over(mask_hw: torch.Tensor) -> torch.Tensor:
        colours = PALETTE[(mask_hw - 1).clamp_min(0) % len(PALETTE)].movedim(-1, 0)
        shown = (mask_hw > 0) & (mask_hw != ignore_value)
        return torch.where(shown, plain * 0.45 + colours * 0.55, plain)

    return torch.cat([plain, *map(laid_over, masks_hw)], dim=2).to(torch.uint8)


def _smp_model(task: SegmentationTask) -> torch.nn.Module:
    try:
        smp: Any = importlib.import_module("segmentation_models_pytorch")  # an optional, heavy library
    except ImportError as error:
        message = (
            f'kind = "segmentation" needs segmentation-models-pytorch. Run: {KINDS["segmentation"].install}'
        )
        raise UsageError(message) from error
    try:
        model: torch.nn.Module = smp.create_model(
            task.architecture,
            encoder_name=task.encoder,
            encoder_weights="imagenet" if task.pretrained else None,
            in_channels=task.channels,
            classes=task.classes,
        )
    except (KeyError, ValueError, OSError, RuntimeError) as error:
        raise UsageError(_no_network(task, error)) from error
    return model


def _torchvision_model(task: SegmentationTask) -> torch.nn.Module:
    models: Any = importlib.import_module("torchvision.models")
    if task.channels != 3:
        message = f"{task.architecture} takes 3 channels, not {task.channels}. Choose another network."
        raise UsageError(message)
    prefix = {"torchvision-deeplabv3": "deeplabv3", "torchvision-fcn": "fcn"}[task.architecture]
    try:
        model: torch.nn.Module = models.get_model(
            f"{prefix}_{task.encoder}",
            weights=None,
            weights_backbone="DEFAULT" if task.pretrained else None,
            num_classes=task.classes,
            aux_loss=False,
        )
    except (KeyError, ValueError, OSError, RuntimeError) as error:
        raise UsageError(_no_network(task, error)) from error
    return model


def _no_network(task: SegmentationTask, error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    hint = " With pretrained = false nothing is downloaded." if task.pretrained else ""
    return f"task.architecture = {task.architecture} with task.encoder = {task.encoder}: {first}.{hint}"
