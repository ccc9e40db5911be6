"""The task of kind "image-classification".

Letters: b images, k classes, c channels, h height, w width.
"""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from trainer_backend.errors import UsageError
from trainer_backend.kinds import KINDS
from trainer_backend.kinds.image_classification import ImageClassificationData, ImageClassificationTask
from trainer_backend.tasks import Datasets, LossTerm
from trainer_backend.tasks.built_in import BuiltIn, ReportWarning, place
from trainer_backend.tasks.vision import export, normalization
from trainer_backend.tasks.vision.batch_norm import treat_batch_norm
from trainer_backend.tasks.vision.files import picture_files, propose_range
from trainer_backend.tasks.vision.pictures import BrokenImageError, PictureRules, bands, picture

Labelled = tuple[Path, str]


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images fp32 (c, h, w), centred around 0, and the number of their class."""

    def __init__(
        self,
        labelled: list[Labelled],
        classes: list[str],
        task: ImageClassificationTask,
        rules: PictureRules,
        normalize: normalization.Normalization,
        *,
        augment: bool,
    ) -> None:
        self._files = [path for path, _ in labelled]
        numbers = {name: number for number, name in enumerate(classes)}
        self.labels = [numbers[label] for _, label in labelled]
        """The number of each picture's class."""
        self._rules = rules
        self.normalization = normalize
        """What it does to a picture's values, which can be undone."""
        self.uses_randomness = augment and bool(task.crop or task.flip or task.mixup or task.cutmix)
        """Whether reading, or mixing what was read, draws."""
        self._transform = _transform(task, augment=augment)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image_chw = self._transform(picture(self._files[index], self._rules).values_chw)
        return self.normalization.apply(image_chw), self.labels[index]

    def source(self, index: int) -> Path:
        """The picture's file."""
        return self._files[index]


class ImageClassification(BuiltIn[ImageClassificationTask, ImageClassificationData]):
    """Trains one class an image. See `trainer_backend.tasks.Task` for what each method gives."""

    def __post_init__(self) -> None:
        self._confusion_kk: torch.Tensor | None = None
        data = self.data
        self.picture_rules = PictureRules(
            channels=self.task.channels,
            value_range=normalization.checked_range(data.value_range),
            page=data.page,
            nodata=data.nodata,
            max_pixels=round(data.max_megapixels * 1e6),
        )
        self._train, self._validation = self._find()
        self.classes = sorted({label for _, label in self._train})
        unknown = {label for _, label in self._validation} - set(self.classes)
        if unknown:
            message = f"The validation images have the class {min(unknown)!r}, which no training image has."
            raise UsageError(message)
        if len(self.classes) < 2:
            message = f"data.path has one class only ({self.classes[0]}). Give at least two."
            raise UsageError(message)

    # ----------------------------------------------------------------- model and data

    def model(self) -> torch.nn.Module:
        """The network, its BatchNorm layers treated as asked. Raises UsageError."""
        task = self.task
        try:
            timm: Any = importlib.import_module("timm")  # an optional, heavy library
        except ImportError as error:
            message = (
                f'kind = "image-classification" needs timm. Run: {KINDS["image-classification"].install}'
            )
            raise UsageError(message) from error
        try:
            model: torch.nn.Module = timm.create_model(
                task.model,
                pretrained=task.pretrained,
                num_classes=len(self.classes),
                in_chans=task.channels,
                drop_rate=task.dropout,
            )
        except (RuntimeError, ValueError, OSError, KeyError, TypeError) as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            near = timm.list_models(f"*{task.model}*")[:3]
            hint = f" Near names: {', '.join(near)}." if near else " See timm.list_models()."
            message = f"task.model = {task.model}: {first}.{hint}"
            raise UsageError(message) from error
        return treat_batch_norm(model, task.batch_norm, self.accumulation_steps)

    def datasets(self) -> Datasets:
        """Training and validation images."""
        normalize = self._normalization()
        propose_range([path for path, _ in self._train], self.picture_rules, self.warn)
        train, held = (
            Pictures(labelled, self.classes, self.task, self.picture_rules, normalize, augment=augment)
            for labelled, augment in ((self._train, True), (self._validation, False))
        )
        return Datasets(train=train, validation=held if self._validation else None)

    def _normalization(self) -> normalization.Normalization:
        """As the recipe states it, else as a pretrained network was trained, else around 0."""
        task = self.task
        found = normalization.stated(task.mean, task.std, task.channels)
        if found is not None:
            return found
        found = self.own_normalization() if task.pretrained else None
        if found is not None:
            self.warn("own-normalization", {"model": task.model, "values": found.words()})
            return found
        return normalization.Normalization(mean=(0.5,), std=(0.5,))

    def own_normalization(self) -> normalization.Normalization | None:
        """What the network was trained with; None where timm does not know."""
        timm: Any = importlib.import_module("timm")
        config = timm.get_pretrained_cfg(self.task.model, allow_unregistered=True)
        return None if config is None else normalization.of_timm({"mean": config.mean, "std": config.std})

    def _find(self) -> tuple[list[Labelled], list[Labelled]]:
        data = self.data
        train = self._usable(_labelled(self.path(data.path), "data.path", self.warn))
        if data.validation_path:
            held = _labelled(self.path(data.validation_path), "data.validation_path", self.warn)
            return train, self._usable(held)
        return self._hold_out(train)

    def _hold_out(self, labelled: list[Labelled]) -> tuple[list[Labelled], list[Labelled]]:
        """The same share of every class, at least one where a class has two."""
        if not self.data.validation_fraction:
            return labelled, []
        generator = torch.Generator().manual_seed(self.seed)
        train, held = [], []
        for label in sorted({label for _, label in labelled}):
            of_class = [entry for entry in labelled if entry[1] == label]
            order = torch.randperm(len(of_class), generator=generator).tolist()
            count = min(len(of_class) - 1, max(1, round(len(of_class) * self.data.validation_fraction)))
            held += [of_class[number] for number in sorted(order[:count])]
            train += [of_class[number] for number in sorted(order[count:])]
        if not held:
            self.warn("no-validation-data", {"samples": len(train)})
        return train, held

    def _usable(self, labelled: list[Labelled]) -> list[Labelled]:
        if self.most_records == 0:  # listed only: which classes there are
            return labelled
        good, bad = [], 0
        for path, label in self.spread(labelled):
            try:
                for window in bands(path, self.picture_rules):
                    picture(path, self.picture_rules, window)
            except BrokenImageError as error:
                if self.data.broken == "stop":
                    message = f'{error} Correct it, or set data.broken = "skip".'
                    raise UsageError(message) from error
                bad += 1
            else:
                good.append((path, label))
        if bad:
            self.warn("images-skipped", {"count": bad})
        if not good:
            message = f"None of the {len(labelled)} images in data.path can be read."
            raise UsageError(message)
        return good

    def collate(self, samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
        """Images fp32 (b, c, h, w), targets fp32 (b, k): shares of each class, which sum to 1."""
        images_bchw = torch.stack([image for image, _ in samples])
        labels_b = torch.tensor([label for _, label in samples])
        return {"images": images_bchw, "targets": F.one_hot(labels_b, len(self.classes)).float()}

    def collate_training(self, samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
        """As `collate`, mixed within the micro-batch where mixup or cutmix is on."""
        batch = self.collate(samples)
        if (self.task.mixup or self.task.cutmix) and len(samples) > 1:
            batch["images"], batch["targets"] = self._mix(batch["images"], batch["targets"])
        return batch

    def _mix(self, images_bchw: torch.Tensor, targets_bk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Zhang et al. 2018 (mixup), Yun et al. 2019 (CutMix): partner of i is i - 1 of this micro-batch."""
        cut = bool(self.task.cutmix) and (not self.task.mixup or bool(torch.rand(()) < 0.5))
        alpha = self.task.cutmix if cut else self.task.mixup
        # A Beta variable from two Gamma variables, by torch's generator (seeded a sample).
        one, other = torch._standard_gamma(torch.full((2,), alpha))  # noqa: SLF001 - torch's only seeded gamma
        share = float(one / (one + other).clamp_min(1e-12))
        partners_bchw, partner_targets_bk = images_bchw.roll(1, 0), targets_bk.roll(1, 0)
        if not cut:
            mixed_bchw = images_bchw * share + partners_bchw * (1 - share)
            return mixed_bchw, targets_bk * share + partner_targets_bk * (1 - share)
        height, width = images_bchw.shape[-2:]
        side = (1 - share) ** 0.5
        centre_y, centre_x = int(torch.randint(height, ())), int(torch.randint(width, ()))
        top, bottom = (max(0, min(height, round(centre_y + sign * side * height / 2))) for sign in (-1, 1))
        left, right = (max(0, min(width, round(centre_x + sign * side * width / 2))) for sign in (-1, 1))
        mixed_bchw = images_bchw.clone()
        mixed_bchw[..., top:bottom, left:right] = partners_bchw[..., top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / (height * width)
        return mixed_bchw, targets_bk * share + partner_targets_bk * (1 - share)

    # ------------------------------------------------------------------------- losses

    def weights(self, batch: dict[str, torch.Tensor]) -> dict[str, float]:
        """The number of images, by the term's name."""
        return {"loss": float(batch["images"].shape[0])}

    def loss(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> LossTerm:
        """Cross-entropy of shares of classes, summed over images."""
        logits_bk = model(batch["images"])
        logits_bk = logits_bk if logits_bk.dtype == torch.float64 else logits_bk.float()
        total = F.cross_entropy(
            logits_bk,
            batch["targets"].to(logits_bk),
            reduction="sum",
            label_smoothing=self.task.label_smoothing if model.training else 0.0,
        )
        return LossTerm(total, float(batch["images"].shape[0]))

    def evaluate(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, LossTerm]:
        """Accuracy; counts for the confusion matrix are kept for `artifacts`."""
        logits_bk = model(batch["images"]).float()
        found_b, truth_b = logits_bk.argmax(1), batch["targets"].argmax(1)
        count = len(self.classes)
        pairs = (truth_b * count + found_b).cpu()
        matrix_kk = torch.bincount(pairs, minlength=count * count).reshape(count, count)
        self._confusion_kk = matrix_kk if self._confusion_kk is None else self._confusion_kk + matrix_kk
        weight = float(len(truth_b))
        return {"accuracy": LossTerm((found_b == truth_b).sum().double(), weight)}

    def artifacts(self, model: torch.nn.Module, folder: Path) -> list[tuple[str, Path, str]]:
        """The confusion matrix of the evaluation that just ended, as CSV: a row a true class."""
        del model
        matrix_kk, self._confusion_kk = self._confusion_kk, None
        if matrix_kk is None:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "confusion.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["true class", *self.classes])
            table.writerows(
                [label, *row] for label, row in zip(self.classes, matrix_kk.tolist(), strict=True)
            )
        right, all_ = int(matrix_kk.trace()), int(matrix_kk.sum())
        return [("table", path, f"confusion matrix: {right} of {all_} right")]

    @torch.no_grad()
    def recognise(
        self, model: torch.nn.Module, path: Path, folder: Path
    ) -> tuple[tuple[tuple[str, float], ...], Path | None]:
        """Shares of the classes of a picture, the largest first; no file. Raises BrokenImageError."""
        del folder
        labelled = [(path, self.classes[0])]
        seen = Pictures(
            labelled, self.classes, self.task, self.picture_rules, self._normalization(), augment=False
        )
        image_1chw = seen[0][0][None].to(next(model.parameters()).device)
        shares_k = model(image_1chw).float().softmax(1)[0].cpu()
        ranked = sorted(zip(self.classes, shares_k.tolist(), strict=True), key=lambda pair: -pair[1])
        return tuple(ranked), None

    exports: Final = ("model",)

    def hand_over(self, model: torch.nn.Module, what: str, folder: Path) -> Path:
        """Write the network as `export` does, into `folder` itself."""
        assert what in self.exports
        return export.moved_up(self.export(model, folder)[0], folder)

    def export(self, model: torch.nn.Module, folder: Path) -> list[Path]:
        """The network as timm loads it, its classes by name, and what its pictures go through."""
        normalize = self._normalization()
        target = export.save_timm(model, folder, self.classes, normalize)
        export.describe_input(
            target,
            classes=self.classes,
            rules=self.picture_rules,
            normalize=normalize,
            batch_norm=self.task.batch_norm,
            image_size=self.task.image_size,
        )
        if self.task.batch_norm == "group-norm":
            self.warn("export-group-norm", {"library": "timm"})
        return [target]


def _labelled(path: Path, key: str, warn: ReportWarning) -> list[Labelled]:
    if path.is_dir():
        files = picture_files(path, key, warn)
        loose = [file for file in files if file.parent == path]
        if loose:
            message = f"{key} = {path}: {loose[0].name} lies in no class's folder. Put each image into one."
            raise UsageError(message)
        return [(file, file.relative_to(path).parts[0]) for file in files]
    if not path.is_file() or path.suffix.lower() != ".csv":
        message = f"{key} = {path} is neither a folder nor a .csv file. Check the path."
        raise UsageError(message)
    return _from_csv(path)


def _from_csv(path: Path) -> list[Labelled]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"{path} cannot be read as CSV: {error}."
        raise UsageError(message) from error
    if not rows or "path" not in rows[0] or "label" not in rows[0]:
        message = f"{path} needs a first line with the columns path and label, and lines below it."
        raise UsageError(message)
    labelled = []
    for number, row in enumerate(rows, 2):
        if not row["path"] or not row["label"]:
            message = f"{path}:{number}: path or label is empty. Fill it in, or take the line away."
            raise UsageError(message)
        labelled.append((place(path.parent, row["path"]), row["label"]))
    return labelled


def _transform(task: ImageClassificationTask, *, augment: bool) -> Any:  # noqa: ANN401 - a transform
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    size = task.image_size
    steps: list[Any] = []
    if augment and task.crop:
        steps.append(v2.RandomResizedCrop(size, scale=(0.35, 1.0), antialias=True))
    else:
        steps += [v2.Resize(size, antialias=True), v2.CenterCrop(size)]
    if augment and task.flip:
        steps.append(v2.RandomHorizontalFlip())
    return v2.Compose([*steps, v2.Identity()])
