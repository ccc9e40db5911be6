"""The one door for pictures: what a file shows, turned, in its colours, on one scale for all files.

Letters: c channels, h height, w width. Pillow reads PNG, JPEG and the like; tifffile reads TIFF, whose
16-bit colours Pillow cuts to 8 bits, and large TIFFs by window.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from trainer_backend.errors import UsageError

SUFFIXES: Final = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".gif"}
TIFF_SUFFIXES: Final = {".tif", ".tiff"}
LARGE_PIXELS: Final = 50_000_000
"""From here on a picture is read by window where its format allows it."""
BAND_ROWS: Final = 1024
"""Rows that are looked at together when a large picture is checked."""
TURNS: Final = range(2, 9)
"""EXIF orientations that turn or mirror a picture (Exif 2.32, tag 274); the others leave it as it is."""
Image.MAX_IMAGE_PIXELS = None  # the bound is PictureRules.max_pixels, which a recipe can raise

Window: TypeAlias = tuple[int, int, int, int]
"""top, left, bottom, right in pixels of the turned picture."""
Values: TypeAlias = npt.NDArray[Any]


class BrokenImageError(UsageError):
    """A file that is no picture, or no picture of the kind that is wanted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureRules:
    """How every picture of a data set becomes numbers."""

    channels: int = 3
    value_range: tuple[float, float] | None = None
    """What becomes 0 and 1. None: 8-bit values over 255, 16-bit ones over 65,535, and no others."""
    page: int | None = None
    """Which page of a file with several, from 1."""
    nodata: float | None = None
    """The value of pixels that were not measured; they become 0 and are valid nowhere."""
    max_pixels: int = 1_000_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """Values fp32 (c, h, w), and bool (h, w) where something was measured (None: everywhere)."""

    values_chw: torch.Tensor
    valid_hw: torch.Tensor | None = None
    dropped_alpha: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoded:
    """A file's own numbers: (h, w) or (h, w, c), turned; colours of a palette stay its numbers."""

    array: Values
    palette: Values | None = None
    """uint8 (256, 3): the colours of a palette's numbers."""
    alpha: bool = False
    """The last channel is alpha."""
    nodata: float | None = None
    """What the file itself says of pixels that were not measured (GDAL's tag)."""
    turned: bool = False
    """Its orientation tag turned or mirrored it."""


# ------------------------------------------------------------------------------ as numbers


def picture(path: Path, rules: PictureRules, window: Window | None = None) -> Picture:
    """A picture, or a window of it, from 0 to 1. Raises BrokenImageError with the file's name."""
    decoded = decode(path, rules, window)
    array = decoded.array
    if decoded.palette is not None:
        array = decoded.palette[np.minimum(array, len(decoded.palette) - 1)]
    array = array if array.ndim == 3 else array[..., None]
    if decoded.alpha and array.shape[-1] != rules.channels:
        array = array[..., :-1]
    nodata = rules.nodata if rules.nodata is not None else decoded.nodata
    valid_hw, array = _without_nodata(path, array, nodata)
    low, high = _range(path, array.dtype, rules)
    values_hwc = torch.from_numpy((array.astype(np.float32) - np.float32(low)) / np.float32(high - low))
    if valid_hw is not None:
        values_hwc[~valid_hw] = 0.0
    values_chw = _as_channels(path, values_hwc.movedim(-1, 0), rules.channels)
    return Picture(
        values_chw=values_chw, valid_hw=valid_hw, dropped_alpha=decoded.alpha and rules.channels not in (2, 4)
    )


def _without_nodata(path: Path, array: Values, nodata: float | None) -> tuple[torch.Tensor | None, Values]:
    """Where all channels hold something, and the values with 0 elsewhere."""
    missing = np.zeros(array.shape[:2], np.bool_)
    if nodata is not None:
        is_missing: Values = np.isnan(array) if math.isnan(nodata) else np.equal(array, nodata)
        missing = np.asarray(is_missing.any(-1))
        if array.dtype.kind == "f" and not math.isnan(nodata):
            missing |= np.isnan(array).any(-1)  # what is not a number was not measured either
        array = np.where(missing[..., None], np.zeros((), array.dtype), array)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "infinite"
        message = (
            f"{path} has {what} pixels. Set data.nodata to the value of pixels that were not measured"
            f" ({'nan' if what == 'NaN' else 'inf'} here), or correct the file."
        )
        raise BrokenImageError(message)
    return (None if nodata is None else torch.from_numpy(~missing)), array


def _range(path: Path, kind: np.dtype[Any], rules: PictureRules) -> tuple[float, float]:
    if rules.value_range is not None:
        return rules.value_range
    if kind == np.bool_:
        return 0.0, 1.0
    if kind in (np.uint8, np.uint16):
        return 0.0, float(np.iinfo(kind).max)
    message = (
        f"{path} has values of type {kind}, which have no scale of their own. Set data.value_range ="
        " [low, high], the values that become 0 and 1 in all pictures."
    )
    raise BrokenImageError(message)


def _as_channels(path: Path, values_chw: torch.Tensor, channels: int) -> torch.Tensor:
    count = values_chw.shape[0]
    if count == channels:
        return values_chw.contiguous()
    if count == 1:
        return values_chw.expand(channels, -1, -1).contiguous()
    if count == 3 and channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114])  # ITU-R BT.601
        return (values_chw * weights[:, None, None]).sum(0, keepdim=True)
    message = f"{path} has {count} channels, but task.channels = {channels}. Set task.channels = {count}."
    raise BrokenImageError(message)


# ----------------------------------------------------------------------------- from a file


def decode(path: Path, rules: PictureRules, window: Window | None = None) -> Decoded:
    """A file's own numbers, turned. Raises BrokenImageError."""
    _refuse_bombs(path, rules)
    try:
        if path.suffix.lower() in TIFF_SUFFIXES and _tifffile() is not None:
            return _decode_tiff(path, rules, window)
        decoded = _decode_large(path, window) or _decode_with_pillow(path, rules)
    except BrokenImageError:
        raise
    except Exception as error:
        message = f"{path} cannot be read as a picture: {_first_line(error)}."
        raise BrokenImageError(message) from error
    if window is None or decoded.array.shape[:2] == (window[2] - window[0], window[3] - window[1]):
        return decoded
    top, left, bottom, right = window
    return dataclasses.replace(decoded, array=decoded.array[top:bottom, left:right])


def size_of(path: Path, rules: PictureRules | None = None) -> tuple[int, int]:
    """Height and width after turning, without reading the pixels. Raises BrokenImageError."""
    height, width, turns = _header(path, rules or PictureRules())
    return (width, height) if turns >= 5 else (height, width)


def bands(path: Path, rules: PictureRules) -> Iterator[Window | None]:
    """Windows that cover a large TIFF row by row, or one None: the whole."""
    height, width = size_of(path, rules)
    if height * width < LARGE_PIXELS or path.suffix.lower() not in TIFF_SUFFIXES or _tifffile() is None:
        yield None
        return
    for top in range(0, height, BAND_ROWS):
        yield top, 0, min(height, top + BAND_ROWS), width


def _refuse_bombs(path: Path, rules: PictureRules) -> None:
    height, width, _ = _header(path, rules)
    if height * width > rules.max_pixels:
        message = (
            f"{path} has {height * width / 1e6:,.0f} megapixels. If that is meant, set data.max_megapixels"
            f" = {math.ceil(height * width / 1e6)}."
        )
        raise BrokenImageError(message)


def _header(path: Path, rules: PictureRules) -> tuple[int, int, int]:
    """Height and width as stored, and the orientation tag (1: as it is)."""
    try:
        tifffile = _tifffile() if path.suffix.lower() in TIFF_SUFFIXES else None
        if tifffile is not None:
            with tifffile.TiffFile(path) as file:
                page = file.pages[min(len(file.pages), rules.page or 1) - 1]
                return page.imagelength, page.imagewidth, _turn_of_tiff(page)
        with Image.open(path) as image:
            return image.height, image.width, _turn_of(path, image)
    except Exception as error:
        message = f"{path} cannot be read as a picture: {_first_line(error)}."
        raise BrokenImageError(message) from error


def _turn_of(path: Path, image: Image.Image) -> int:
    """The orientation tag, without decoding: Pillow would decode a PNG to look for one behind its pixels."""
    exif = image.getexif() if image.format != "PNG" else Image.Exif()
    if image.format == "PNG":
        exif.load(_exif_of_png(path))
    return int(exif.get(274, 1) or 1)


def _exif_of_png(path: Path) -> bytes:
    """The contents of the chunk eXIf, wherever it stands; empty when there is none."""
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, kind = int.from_bytes(head[:4], "big"), head[4:]
            if kind == b"eXIf":
                return file.read(length)
            if kind == b"IEND":
                break
            file.seek(length + 4, io.SEEK_CUR)
    return b""


def _decode_with_pillow(path: Path, rules: PictureRules) -> Decoded:
    deep = _deep_png(path)
    if deep is not None:
        return deep
    with Image.open(path) as image:
        pages = getattr(image, "n_frames", 1)
        if pages > 1 and image.format != "MPO":  # a phone's second view lies behind the picture
            image.seek(_page(path, pages, rules) - 1)
        image.load()
        turn = int(image.getexif().get(274, 1) or 1)
        upright = ImageOps.exif_transpose(image)
        turned = turn in TURNS
        if upright.mode == "P":
            colours = upright.getpalette("RGB") or []
            palette = np.asarray(colours, np.uint8).reshape(-1, 3)
            return Decoded(array=np.asarray(upright), palette=palette, turned=turned)
        if upright.mode == "PA":
            upright = upright.convert("RGBA")
        if upright.mode == "CMYK":
            upright = _rgb_of_cmyk(upright)
        elif upright.mode in ("LAB", "HSV", "YCbCr", "RGBX", "La", "RGBa"):
            upright = upright.convert("RGBA" if upright.mode in ("La", "RGBa") else "RGB")
        return Decoded(array=np.asarray(upright), alpha=upright.mode in ("LA", "RGBA"), turned=turned)


def _rgb_of_cmyk(image: Image.Image) -> Image.Image:
    """By the file's own profile; without one by Pillow's conversion, which knows Adobe's inverted inks."""
    profile = image.info.get("icc_profile")
    if profile:
        try:
            converted = ImageCms.profileToProfile(
                image,
                ImageCms.ImageCmsProfile(io.BytesIO(profile)),
                ImageCms.createProfile("sRGB"),
                outputMode="RGB",
            )
        except (
            ImageCms.PyCMSError,
            OSError,
        ):  # a damaged profile: the inks' usual meaning
            converted = None
        if converted is not None:
            return converted
    return image.convert("RGB")


def _deep_png(path: Path) -> Decoded | None:
    """A PNG with 16 bits a colour, which Pillow would cut to 8; None for any other file."""
    with path.open("rb") as file:
        start = file.read(26)
    if len(start) < 26 or not start.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    bits, colour = start[24:26]
    if bits != 16 or colour not in (2, 4, 6):  # grey alone (0) is read whole by Pillow
        return None
    try:
        codecs: Any = importlib.import_module("imagecodecs")
    except ImportError as error:
        message = (
            f"{path} has 16 bits per channel, of which Pillow would drop 8. Run: pip install imagecodecs,"
            " or save it with 8 bits."
        )
        raise BrokenImageError(message) from error
    return Decoded(array=codecs.png_decode(path.read_bytes()), alpha=colour != 2)


# ------------------------------------------------------------------------------------ TIFF


@functools.cache
def _tifffile() -> Any:  # noqa: ANN401 - an optional library, or None
    try:
        return importlib.import_module("tifffile")
    except ImportError:
        return None


def _turn_of_tiff(page: Any) -> int:  # noqa: ANN401 - tifffile's page
    tag = page.tags.get(274)
    return int(tag.value) if tag is not None else 1


def _decode_tiff(path: Path, rules: PictureRules, window: Window | None) -> Decoded:
    tifffile = _tifffile()
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        others = [other for other in file.series[1:] if not getattr(other.keyframe, "is_reduced", False)]
        page = file.pages[0]
        if others:  # pages of unlike shapes are series of their own
            number = _page(path, 1 + len(others), rules)
            series = [file.series[0], *others][number - 1]
            page = series.keyframe
        axes, shape = series.axes, series.shape
        turn = _turn_of_tiff(page)
        take = _taken_axes(path, axes, shape, rules, one_series=not others)
        if window is not None and turn not in TURNS:
            array = _read_window(series, axes, take, window)
        else:
            array = series.asarray()[tuple(take[axis] for axis in axes)]
            array = _turned(_colours_last(array, axes, take), turn)
            if window is not None:
                array = array[window[0] : window[2], window[1] : window[3]]
        return Decoded(
            array=_in_order(array, page),
            palette=_palette_of_tiff(page),
            alpha=_has_alpha(page, array),
            nodata=_nodata_of_tiff(page),
            turned=turn in TURNS,
        )


def _taken_axes(
    path: Path, axes: str, shape: tuple[int, ...], rules: PictureRules, *, one_series: bool
) -> dict[str, int | slice]:
    """What is taken of each axis: the plane and its colours whole, one page of anything else."""
    take: dict[str, int | slice] = {}
    pages = [axis for axis, length in zip(axes, shape, strict=True) if axis not in "YXSC" and length > 1]
    if len(pages) > 1:
        message = (
            f"{path} has the axes {axes}, more than height, width and channels. Save one plane per file."
        )
        raise BrokenImageError(message)
    for axis, length in zip(axes, shape, strict=True):
        if axis in "YX" or (axis in "SC" and length > 1):
            take[axis] = slice(None)
        elif length > 1 and one_series:
            take[axis] = _page(path, length, rules) - 1
        else:
            take[axis] = 0
    if isinstance(take.get("S"), slice) and isinstance(take.get("C"), slice):
        message = f"{path} has two axes of channels ({axes}). Save one plane per file."
        raise BrokenImageError(message)
    return take


def _page(path: Path, pages: int, rules: PictureRules) -> int:
    if rules.page is None:
        message = f"{path} has {pages} pages. Choose one with data.page (1 is the first)."
        raise BrokenImageError(message)
    if rules.page > pages:
        message = f"data.page = {rules.page}, but {path} has {pages} pages. Choose one of them."
        raise BrokenImageError(message)
    return rules.page


def _read_window(
    series: Any,  # noqa: ANN401 - tifffile's
    axes: str,
    take: dict[str, int | slice],
    window: Window,
) -> Values:
    """Only the tiles or strips that the window touches are read and decoded, where pages lie apart."""
    top, left, bottom, right = window
    chosen = [place for axis in axes if axis not in "YXSC" and isinstance(place := take[axis], int)]
    numbers = [number for number in chosen if number] or [0]
    page = series.keyframe if len(series.pages) == 1 else series.pages[numbers[0]]
    if len(series.pages) > 1 and series.size // len(series.pages) * len(chosen) != page.size * len(chosen):
        array: Values = series.asarray()[tuple(take[axis] for axis in axes)]
        return _colours_last(array, axes, take)[top:bottom, left:right]
    return _window_of_page(page, series.keyframe, window)


def _window_of_page(page: Any, key: Any, window: Window) -> Values:  # noqa: ANN401 - tifffile's
    """(h, w) or (h, w, c) of one page, from the segments that the window touches."""
    top, left, bottom, right = window
    samples = key.samplesperpixel
    if key.is_final and _lies_in_one_piece(page):
        rows = _window_of_rows(page, key, window)
        return rows[..., 0] if samples == 1 else rows
    height = key.tilelength if key.is_tiled else (key.rowsperstrip or key.imagelength)
    width = key.tilewidth if key.is_tiled else key.imagewidth
    down, across = -(-key.imagelength // height), -(-key.imagewidth // width)
    planes = samples if key.planarconfig == 2 else 1  # 2: each channel in tiles of its own
    found = np.full((bottom - top, right - left, samples), key.nodata, key.dtype)
    for plane in range(planes):
        for row in range(top // height, -(-bottom // height)):
            for column in range(left // width, -(-right // width)):
                number = (plane * down + row) * across + column
                segment = _segment(page, key, number)
                if segment is None:  # a tile that was never written
                    continue
                y, x = row * height, column * width
                y0, y1 = max(top, y), min(bottom, y + segment.shape[0])
                x0, x1 = max(left, x), min(right, x + segment.shape[1])
                part = segment[y0 - y : y1 - y, x0 - x : x1 - x]
                channels = slice(plane, plane + 1) if planes > 1 else slice(None)
                found[y0 - top : y1 - top, x0 - left : x1 - left, channels] = part
    return found[..., 0] if samples == 1 else found


def _lies_in_one_piece(page: Any) -> bool:  # noqa: ANN401 - tifffile's
    """Whether a page's strips follow one another; a frame's may lie otherwise than its key frame's."""
    offsets, counts = page.dataoffsets, page.databytecounts
    ends = (offset + count for offset, count in zip(offsets, counts, strict=True))
    return bool(offsets) and all(end == start for end, start in zip(ends, offsets[1:], strict=False))


def _window_of_rows(page: Any, key: Any, window: Window) -> Values:  # noqa: ANN401 - tifffile's
    """(h, w, c) of rows that lie in the file as they are; a plain TIFF may be one strip of it all."""
    top, left, bottom, right = window
    kind = np.dtype(key.dtype).newbyteorder(page.parent.byteorder)
    planes, channels = (key.samplesperpixel, 1) if key.planarconfig == 2 else (1, key.samplesperpixel)
    pixel_bytes = channels * kind.itemsize
    found = np.empty((planes, bottom - top, right - left, channels), kind)
    file = page.parent.filehandle
    for plane, rows in enumerate(found):
        for y, row in enumerate(rows, top):
            pixel = (plane * key.imagelength + y) * key.imagewidth + left
            file.seek(page.dataoffsets[0] + pixel * pixel_bytes)
            if file.readinto(row) < row.nbytes:
                raise EOFError("the file ends before its pixels do")
    return found[0] if planes == 1 else found[..., 0].transpose(1, 2, 0)


def _segment(page: Any, key: Any, number: int) -> Values | None:  # noqa: ANN401 - tifffile's
    """(h, w, c) of one tile or strip; None when the file holds none."""
    offset, count = page.dataoffsets[number], page.databytecounts[number]
    if not offset or not count:
        return None
    decode_segment, tables = key.decode, page.jpegtables  # both may read elsewhere in the file first
    file = page.parent.filehandle
    file.seek(offset)
    decoded, _, shape = decode_segment(file.read(count), number, jpegtables=tables)
    if decoded is None:
        return None
    values: Values = decoded[0][: shape[1], : shape[2]]
    return values


def _colours_last(array: Values, axes: str, take: dict[str, int | slice]) -> Values:
    left = [axis for axis in axes if isinstance(take[axis], slice)]
    order = [left.index("Y"), left.index("X"), *(left.index(axis) for axis in left if axis not in "YX")]
    return array.transpose(order)


def _turned(array: Values, turn: int) -> Values:
    """As a person sees it: TIFF 6.0, tag 274."""
    match turn:
        case 2:
            return array[:, ::-1]
        case 3:
            return array[::-1, ::-1]
        case 4:
            return array[::-1]
        case 5:
            return array.swapaxes(0, 1)
        case 6:
            return array[::-1].swapaxes(0, 1)
        case 7:
            return array[::-1, ::-1].swapaxes(0, 1)
        case 8:
            return array[:, ::-1].swapaxes(0, 1)
        case _:
            return array


def _in_order(array: Values, page: Any) -> Values:  # noqa: ANN401 - tifffile's page
    """In this machine's byte order; white stands for the largest value also where the file has it at 0."""
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    if page.photometric == 0 and array.dtype.kind == "u":  # WhiteIsZero
        return np.iinfo(array.dtype).max - array
    if page.photometric == 0 and array.dtype.kind == "b":
        return ~array
    if page.photometric == 5 and array.ndim == 3 and array.shape[-1] == 4 and array.dtype == np.uint8:
        profile = page.tags.get(34675)
        inks = Image.fromarray(array, "CMYK")
        if profile is not None:
            inks.info["icc_profile"] = bytes(profile.value)
        return np.asarray(_rgb_of_cmyk(inks))
    return array


def _has_alpha(page: Any, array: Values) -> bool:  # noqa: ANN401 - tifffile's page
    """Whether the last channel is said to be alpha (ExtraSamples 1 or 2)."""
    if page.photometric == 5 or array.ndim != 3:
        return False
    extra = tuple(int(value) for value in page.extrasamples or ())
    return len(extra) == 1 and extra[0] in (1, 2)


def _palette_of_tiff(page: Any) -> Values | None:  # noqa: ANN401 - tifffile's page
    if page.photometric != 3 or page.colormap is None:
        return None
    return np.ascontiguousarray((np.asarray(page.colormap).T >> 8).astype(np.uint8))


def _nodata_of_tiff(page: Any) -> float | None:  # noqa: ANN401 - tifffile's page
    tag = page.tags.get(42113)  # GDAL_NODATA, a number as text
    try:
        return float(str(tag.value).strip().strip("\0")) if tag is not None else None
    except ValueError:
        return None


# ------------------------------------------------------------------- other large pictures


def _decode_large(path: Path, window: Window | None) -> Decoded | None:
    """A window of a large PNG or JPEG through libvips, where pyvips is installed; else None."""
    if window is None:
        return None
    height, width = size_of(path)
    if height * width < LARGE_PIXELS:
        return None
    try:
        pyvips: Any = importlib.import_module("pyvips")
    except (ImportError, OSError):  # not there, or its C library is not
        return None
    image = pyvips.Image.new_from_file(str(path)).autorot()
    if image.interpretation == "cmyk":
        image = image.icc_transform("srgb", embedded=True)
    top, left, bottom, right = window
    array = image.crop(left, top, right - left, bottom - top).numpy()
    return Decoded(array=array, alpha=bool(image.hasalpha()))


def _first_line(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "its contents are of no known format"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")


__all__ = [
    "SUFFIXES",
    "BrokenImageError",
    "Decoded",
    "Picture",
    "PictureRules",
    "bands",
    "decode",
    "picture",
    "size_of",
]
