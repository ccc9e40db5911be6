"""Tiles of a 100-megapixel TIFF and its mask, as training reads them, in a process of its own.

tile_100mp_rss_mb      peak resident memory above that of the same process after its imports: files checked,
                       masks counted, tiles with foreground found, every 512 x 512 tile read and collated;
                       the worst of three ways to store the same pixels
tile_100mp_s           seconds for that, the slowest
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.bench.figures import peak_bytes

SIDE: Final = 10_000
STORED: Final[dict[str, dict[str, Any]]] = {
    "tiles": {"tile": (256, 256), "compression": "zlib"},
    "strips": {"rowsperstrip": 16, "compression": "zlib"},
    "plain": {},
}


def write_pair(folder: Path, stored: dict[str, Any]) -> None:
    """A picture (uint8, 3 channels) and a mask of two classes, written band by band."""
    import tifffile

    bands = range(0, SIDE, 1000)
    rng = np.random.default_rng(0)
    image = np.empty((SIDE, SIDE, 3), np.uint8)
    for top in bands:
        image[top : top + 1000] = rng.integers(0, 256, (1000, 1, 3), np.uint8)
        image[top : top + 1000, ::7] += np.uint8(3)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[2000:3000, 4000:6000] = 1
    for name, array in (("images", image), ("masks", mask)):
        (folder / name).mkdir()
        tifffile.imwrite(folder / name / "scene.tif", array, photometric=None, **stored)


def read_pair(folder: Path) -> dict[str, float]:
    """One epoch over the tiles of a pair, in this process."""
    import tifffile  # noqa: F401 - idle is after the imports
    import torchvision.transforms.v2  # noqa: F401

    from trainer_backend.kinds.segmentation import SegmentationData, SegmentationTask
    from trainer_backend.tasks.vision.segmentation import Segmentation

    data = SegmentationData(images="images", masks="masks", validation_fraction=0.0)
    task = Segmentation(SegmentationTask(tile_size=512, foreground=0.5), data, folder=folder)
    idle = peak_bytes()
    began = time.perf_counter()
    train = task.datasets().train
    pixels = 0
    for index in range(len(train)):
        pixels += int(task.collate([train[index]])["masks"].numel())
    took_s = time.perf_counter() - began
    assert pixels >= SIDE * SIDE
    return {"over_idle_mb": (peak_bytes() - idle) / 1e6, "took_s": took_s}


def main() -> None:
    """Measure each way of storing."""
    if len(sys.argv) > 1:
        print(json.dumps(read_pair(Path(sys.argv[1]))))
        return
    found = []
    for name, stored in STORED.items():
        with tempfile.TemporaryDirectory() as folder:
            write_pair(Path(folder), stored)
            command = [sys.executable, "-m", "tests.bench.door.large_pictures", folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(name, found[-1], file=sys.stderr)
    worst_mb, slowest_s = (max(one[key] for one in found) for key in ("over_idle_mb", "took_s"))
    print(json.dumps({"tile_100mp_rss_mb": round(worst_mb, 1), "tile_100mp_s": round(slowest_s, 1)}))


if __name__ == "__main__":
    main()
