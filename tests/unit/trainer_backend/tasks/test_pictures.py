"""The door for pictures: turned, in their colours, on one scale; what cannot be is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image, ImageCms

from trainer_backend.tasks.vision.files import picture_files, propose_range
from trainer_backend.tasks.vision.pictures import (
    BrokenImageError,
    PictureRules,
    bands,
    picture,
    size_of,
)

DOOR = Path(__file__).parents[3] / "data" / "door"


def said_by(call: Any, *arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    """What a function reports through its last argument."""
    said: list[tuple[str, dict[str, Any]]] = []
    call(*arguments, lambda code, values: said.append((code, values)))
    return said


def test_inks_come_in_as_their_colours() -> None:
    """Adobe's CMYK is stored inverted."""
    found = picture(DOOR / "cmyk.jpg", PictureRules())
    assert found.values_chw.mean((1, 2)).tolist() == pytest.approx([220 / 255, 30 / 255, 40 / 255], abs=1e-6)


def test_a_profile_of_inks_is_followed(tmp_path: Path) -> None:
    """A profile that Pillow cannot use falls back to the inks' usual meaning."""
    inks = Image.new("CMYK", (4, 4), (0, 255, 255, 0))
    inks.save(tmp_path / "a.jpg", quality=100, icc_profile=b"no profile")
    plain = picture(tmp_path / "a.jpg", PictureRules()).values_chw.mean((1, 2))
    assert plain[0] > 0.9
    assert plain[1] < 0.1
    rgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    inks.save(tmp_path / "b.jpg", quality=100, icc_profile=rgb)  # of the wrong colour space: likewise
    assert torch.equal(picture(tmp_path / "b.jpg", PictureRules()).values_chw.mean((1, 2)), plain)


def test_a_picture_is_turned_as_its_tag_says() -> None:
    """EXIF orientation 6: stored 8 x 4, seen 4 wide and 8 high."""
    found = picture(DOOR / "exif.jpg", PictureRules()).values_chw
    assert tuple(found.shape) == (3, 8, 4)
    assert size_of(DOOR / "exif.jpg") == (8, 4)
    assert float(found[:, :4].mean()) > 0.9
    assert float(found[:, 4:].mean()) < 0.1


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_tiff_is_turned_like_a_jpeg(tmp_path: Path, turn: int) -> None:
    """Pillow's own transposition is the oracle, window by window as well."""
    values = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    tifffile.imwrite(tmp_path / "a.tif", values, extratags=[(274, "H", 1, turn, True)])
    ways = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # Exif 2.32, in Pillow's numbers of transpositions
    picture_ = Image.fromarray(values)
    right = np.asarray(picture_.transpose(Image.Transpose(ways[turn])) if turn in ways else picture_)
    found = picture(tmp_path / "a.tif", PictureRules(channels=1)).values_chw[0]
    assert np.array_equal(np.round(found.numpy() * 255), right)
    assert size_of(tmp_path / "a.tif") == right.shape
    part = picture(tmp_path / "a.tif", PictureRules(channels=1), (1, 0, 3, 2)).values_chw[0]
    assert torch.equal(part, found[1:3, 0:2])


def test_one_value_is_one_number_in_every_float_tiff() -> None:
    """The scale is the data set's, never a picture's own; without one a float picture is refused."""
    rules = PictureRules(channels=1, value_range=(0.0, 3000.0))
    one, other = (picture(DOOR / name, rules).values_chw for name in ("f0.tif", "f1.tif"))
    raw = [tifffile.imread(DOOR / name) for name in ("f0.tif", "f1.tif")]
    assert np.allclose(one[0].numpy() * 3000, raw[0])
    assert np.allclose(other[0].numpy() * 3000, raw[1])
    with pytest.raises(BrokenImageError, match=r"f0\.tif.*data\.value_range"):
        picture(DOOR / "f0.tif", PictureRules(channels=1))


def test_what_is_no_number_is_named_or_ignored(tmp_path: Path) -> None:
    """NaN and infinity; `nodata` makes them pixels that are valid nowhere."""
    with pytest.raises(BrokenImageError, match=r"nan\.tif has NaN pixels"):
        picture(DOOR / "nan.tif", PictureRules(channels=1))
    rules = PictureRules(channels=1, value_range=(0.0, 1.0), nodata=float("nan"))
    found = picture(DOOR / "nan.tif", rules)
    assert found.valid_hw is not None
    assert int((~found.valid_hw).sum()) == 1
    assert bool(torch.isfinite(found.values_chw).all())
    values = np.ones((4, 4), np.float32)
    values[0, 0], values[1, 1] = np.inf, -9999
    tifffile.imwrite(tmp_path / "a.tif", values)
    with pytest.raises(BrokenImageError, match="infinite"):
        picture(tmp_path / "a.tif", PictureRules(channels=1, value_range=(0, 1), nodata=-9999))


def test_the_files_own_word_for_no_data_is_heard(tmp_path: Path) -> None:
    """GDAL writes it as a text into tag 42113."""
    values = np.full((4, 4), 5, np.int16)
    values[0] = -1
    tifffile.imwrite(tmp_path / "a.tif", values, extratags=[(42113, "s", 0, "-1", True)])
    found = picture(tmp_path / "a.tif", PictureRules(channels=1, value_range=(0, 10)))
    assert found.valid_hw is not None
    assert found.valid_hw.sum(1).tolist() == [0, 4, 4, 4]
    assert found.values_chw[0].mean(1).tolist() == [0.0, 0.5, 0.5, 0.5]


def test_pages_are_chosen_never_guessed() -> None:
    """Two pages: refused with their number, and either can be had."""
    with pytest.raises(BrokenImageError, match="has 2 pages"):
        picture(DOOR / "pages.tif", PictureRules(channels=1))
    first, second = (
        picture(DOOR / "pages.tif", PictureRules(channels=1, page=page)).values_chw for page in (1, 2)
    )
    assert np.array_equal(np.round(first[0].numpy() * 255), tifffile.imread(DOOR / "pages.tif", key=0))
    assert np.array_equal(np.round(second[0].numpy() * 255), tifffile.imread(DOOR / "pages.tif", key=1))
    with pytest.raises(BrokenImageError, match=r"data\.page = 3"):
        picture(DOOR / "pages.tif", PictureRules(channels=1, page=3))


def test_twelve_bits_in_sixteen_are_said_and_stay_on_one_scale(tmp_path: Path) -> None:
    """Never stretched picture by picture."""
    rules = PictureRules(channels=1)
    assert float(picture(DOOR / "u12.png", rules).values_chw.max()) == pytest.approx(4095 / 65_535)
    assert said_by(propose_range, [DOOR / "u12.png"], rules) == [
        ("values-below-range", {"highest": 4095, "bits": 12, "range_high": 4095})
    ]
    assert not said_by(propose_range, [DOOR / "u12.png"], PictureRules(channels=1, value_range=(0, 4095)))
    Image.fromarray(np.full((4, 4), 65_000, np.uint16)).save(tmp_path / "full.png")
    assert not said_by(propose_range, [tmp_path / "full.png"], rules)


def test_hidden_files_are_passed_over_and_named(tmp_path: Path) -> None:
    """A Mac leaves "._a.png" beside a picture on a foreign disk."""
    for name in ("a.png", "._a.png"):
        (tmp_path / name).write_bytes((DOOR / name).read_bytes())
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "b.png").write_bytes(b"no picture")
    said: list[Any] = []
    found = picture_files(tmp_path, "data.images", lambda code, values: said.append((code, values)))
    assert [path.name for path in found] == ["a.png"]
    assert said == [("hidden-files", {"count": 1, "first": "._a.png", "key": "data.images"})]


def test_sixteen_bits_a_colour_are_all_kept(tmp_path: Path) -> None:
    """Pillow would cut them to eight: in a PNG and in a TIFF alike."""
    import imagecodecs

    values = np.arange(48, dtype=np.uint16).reshape(4, 4, 3) * 1000 + 7
    (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(values))
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="rgb")
    for name in ("a.png", "a.tif"):
        found = picture(tmp_path / name, PictureRules()).values_chw
        assert np.array_equal(np.round(found.numpy() * 65_535).astype(np.uint16), values.transpose(2, 0, 1))


def test_palettes_alpha_and_grey_become_the_channels_asked_for(tmp_path: Path) -> None:
    """A palette's numbers are colours in a picture; alpha is dropped and said; grey fills three channels."""
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 255, 0, 128])
    palette.save(tmp_path / "palette.png")
    assert picture(tmp_path / "palette.png", PictureRules()).values_chw[:, 0, 0].tolist() == pytest.approx(
        [1.0, 0.0, 128 / 255]
    )
    Image.new("RGBA", (2, 2), (255, 0, 0, 7)).save(tmp_path / "alpha.png")
    found = picture(tmp_path / "alpha.png", PictureRules())
    assert (found.values_chw[:, 0, 0].tolist(), found.dropped_alpha) == ([1.0, 0.0, 0.0], True)
    Image.new("L", (2, 2), 51).save(tmp_path / "grey.png")
    assert picture(tmp_path / "grey.png", PictureRules()).values_chw[:, 0, 0].tolist() == pytest.approx(
        [0.2] * 3
    )
    assert float(
        picture(tmp_path / "alpha.png", PictureRules(channels=1)).values_chw[0, 0, 0]
    ) == pytest.approx(0.299)


def test_bands_beyond_colour_are_taken_when_asked_for(tmp_path: Path) -> None:
    """Planar or interleaved; another number is refused with the number that would fit."""
    values = np.arange(5 * 16, dtype=np.uint16).reshape(5, 4, 4)
    tifffile.imwrite(tmp_path / "a.tif", values, planarconfig="separate", photometric="minisblack")
    found = picture(tmp_path / "a.tif", PictureRules(channels=5)).values_chw
    assert np.array_equal(np.round(found.numpy() * 65_535), values)
    with pytest.raises(BrokenImageError, match=r"has 5 channels.*task\.channels = 5"):
        picture(tmp_path / "a.tif", PictureRules())


def test_a_picture_of_a_gigapixel_is_refused_unless_stated(tmp_path: Path) -> None:
    """By its header alone, before anything is decoded."""
    header = bytearray((DOOR / "a.png").read_bytes())
    header[16:24] = (60_000).to_bytes(4, "big") + (60_000).to_bytes(4, "big")
    import zlib

    header[29:33] = zlib.crc32(bytes(header[12:29])).to_bytes(4, "big")
    (tmp_path / "bomb.png").write_bytes(bytes(header))
    with pytest.raises(BrokenImageError, match=r"3,600 megapixels.*data\.max_megapixels = 3600"):
        picture(tmp_path / "bomb.png", PictureRules())


@pytest.mark.parametrize("options", [{}, {"tile": (64, 64)}, {"rowsperstrip": 7}])
@pytest.mark.parametrize("compression", [None, "zlib", "lzw", "jpeg"])
@pytest.mark.parametrize("planes", ["contig", "separate"])
def test_windows_of_a_tiff_are_its_parts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    compression: str | None,
    planes: str,
) -> None:
    """From strips or tiles, whatever their compression; checked band by band when it is large."""
    values = np.random.default_rng(0).integers(0, 255, (200, 150, 3), np.uint8)
    values = values if planes == "contig" else np.ascontiguousarray(values.transpose(2, 0, 1))
    tifffile.imwrite(
        tmp_path / "a.tif",
        values,
        compression=compression,
        photometric="rgb",
        planarconfig=planes,
        **({"rowsperstrip": 56} if compression == "jpeg" and "rowsperstrip" in options else options),
    )
    whole = picture(tmp_path / "a.tif", PictureRules()).values_chw
    part = picture(tmp_path / "a.tif", PictureRules(), (33, 70, 150, 149)).values_chw
    assert torch.equal(part, whole[:, 33:150, 70:149])
    monkeypatch.setattr("trainer_backend.tasks.vision.pictures.LARGE_PIXELS", 1)
    monkeypatch.setattr("trainer_backend.tasks.vision.pictures.BAND_ROWS", 64)
    windows = list(bands(tmp_path / "a.tif", PictureRules()))
    assert [window[:3:2] for window in windows if window is not None] == [
        (0, 64),
        (64, 128),
        (128, 192),
        (192, 200),
    ]


@pytest.mark.parametrize("planes", ["contig", "separate"])
def test_a_window_of_a_plain_tiff_reads_its_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planes: str
) -> None:
    """One strip may hold the whole picture; its 16 bits come in the file's own byte order."""
    values = np.random.default_rng(0).integers(0, 65_535, (2000, 100, 3), np.uint16)
    stored = values if planes == "contig" else np.ascontiguousarray(values.transpose(2, 0, 1))
    tifffile.imwrite(
        tmp_path / "a.tif",
        stored,
        photometric="rgb",
        planarconfig=planes,
        rowsperstrip=2000,
        byteorder=">",
    )
    read_bytes = 0
    read, read_into = tifffile.FileHandle.read, tifffile.FileHandle.readinto

    def counted(file: Any, size: int = -1, /) -> bytes:
        nonlocal read_bytes
        found: bytes = read(file, size)
        read_bytes += len(found)
        return found

    def counted_into(file: Any, buffer: Any, /) -> int:
        nonlocal read_bytes
        count: int = read_into(file, buffer)
        read_bytes += count
        return count

    monkeypatch.setattr(tifffile.FileHandle, "read", counted)
    monkeypatch.setattr(tifffile.FileHandle, "readinto", counted_into)
    part = picture(tmp_path / "a.tif", PictureRules(), (900, 20, 910, 90)).values_chw
    assert np.array_equal(np.round(part.movedim(0, -1).numpy() * 65_535), values[900:910, 20:90])
    assert read_bytes < values.nbytes / 10


def test_a_window_of_one_page_of_several_is_that_pages(tmp_path: Path) -> None:
    """Pages of one shape, or with an axis of their own."""
    values = np.random.default_rng(0).integers(0, 255, (3, 40, 30), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="minisblack", compression="zlib")
    for page in (1, 2, 3):
        rules = PictureRules(channels=1, page=page)
        found = picture(tmp_path / "a.tif", rules, (5, 6, 20, 30)).values_chw[0]
        assert np.array_equal(np.round(found.numpy() * 255), values[page - 1, 5:20, 6:30])


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.jpg"])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, name: str) -> None:
    """Whatever the decoder raises becomes one sentence."""
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BrokenImageError, match=name):
        picture(tmp_path / name, PictureRules())


def test_a_pretrained_networks_own_normalization_comes_back_from_its_values() -> None:
    """For people to look at: undone exactly, in the order of colours that the network wants."""
    from trainer_backend.tasks.vision.normalization import of_encoder, of_timm

    found = of_timm({"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)})
    image_chw = torch.rand(3, 2, 2)
    assert torch.allclose(found.apply(image_chw)[0], (image_chw[0] - 0.485) / 0.229)
    reverse = of_encoder(
        {"mean": [103.9, 116.8, 123.7], "std": [1, 1, 1], "input_range": [0, 255], "input_space": "BGR"}
    )
    assert reverse is not None
    assert torch.allclose(reverse.apply(image_chw)[2], image_chw[0] * 255 - 123.7, atol=1e-4)
    for one in (found, reverse):
        assert torch.allclose(one.undo(one.apply(image_chw)), image_chw, atol=1e-5)
