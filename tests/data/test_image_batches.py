"""`image_batches` reads images without labels, a batch at a time."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from builders import good_arrays
from PIL import Image

from dpvision.data import image_batches
from dpvision.errors import DataError


def _all(
    path: Path, *, size: tuple[int, int] = (6, 6), channels: int = 3, at_a_time: int = 2
) -> tuple[list[str], np.ndarray]:
    """Names and images of a source without problems."""
    names, images = [], []
    for batch in image_batches(path, size=size, channels=channels, at_a_time=at_a_time):
        assert len(batch.names) <= at_a_time and not any(batch.problems)
        names += batch.names
        images.append(batch.images)
    assert batch.total == len(names)
    return names, np.concatenate(images)


def test_images_of_a_folder_a_file_and_an_array(tmp_path: Path) -> None:
    images = good_arrays(channels=3)["train_images"][:3]
    (tmp_path / "in").mkdir()
    for name, image in zip("bac", images, strict=True):
        Image.fromarray(image).save(tmp_path / "in" / f"{name}.png")
    names, result = _all(tmp_path / "in")
    assert names == ["a.png", "b.png", "c.png"] and np.array_equal(result, images[[1, 0, 2]])
    names, result = _all(tmp_path / "in" / "b.png", size=(3, 4), channels=1)
    assert names == ["b.png"] and result.shape == (1, 3, 4, 1)
    for key, array in (("images", images), ("test_images", images), ("images", np.asfortranarray(images))):
        np.savez(tmp_path / "a.npz", **{key: array})
        names, result = _all(tmp_path / "a.npz")
        assert names == ["0", "1", "2"] and np.array_equal(result, images)
    np.savez(tmp_path / "gray.npz", images=images[..., 0])
    assert _all(tmp_path / "gray.npz")[1].shape == (3, 6, 6, 3)


def test_unreadable_images(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match=r"in: contains no image \(\.png"):
        _all(tmp_path / "in")
    (tmp_path / "in" / "a.png").write_text("text")
    Image.new("L", (6, 6)).save(tmp_path / "in" / "b.png")
    (tmp_path / "in" / "notes.txt").write_text("text")
    (batch,) = image_batches(tmp_path / "in", size=(6, 6), channels=1)
    assert batch.names == ["a.png", "b.png", "notes.txt"] and batch.images.shape == (1, 6, 6, 1)
    first, second, third = batch.problems
    assert second is None and "neither a PNG, JPEG" in str(first) and "is not an image by its name" in str(third)
    (batch,) = image_batches(tmp_path / "in" / "a.png", size=(6, 6), channels=1)
    assert batch.images.shape == (0, 6, 6, 1) and "neither a PNG, JPEG" in str(batch.problems[0])
    np.savez(tmp_path / "a.npz", train_images=np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(DataError, match="neither test_images nor images"):
        _all(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", images=np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(DataError, match=r"b\.npz"):
        _all(tmp_path / "b.npz", size=(6, 6))
    for name, channels in (("nothing", 1), ("a.npz", 2)):
        with pytest.raises(DataError, match=name):
            _all(tmp_path / name, channels=channels)


def test_an_array_is_read_a_few_images_at_a_time(tmp_path: Path) -> None:
    """However many there are: 64 MB pass through less than 3."""
    np.savez(tmp_path / "many.npz", images=np.zeros((1000, 256, 256), np.uint8))
    tracemalloc.start()
    names = sum(
        len(batch.names) for batch in image_batches(tmp_path / "many.npz", size=(256, 256), channels=1, at_a_time=4)
    )
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert names == 1000 and most < 3 << 20


def test_images_in_folders_of_the_folder_and_never_through_a_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "in", tmp_path / "outside"
    for place in (folder / "cat", folder / "dog" / "young", outside):
        place.mkdir(parents=True)
        Image.new("L", (6, 6)).save(place / "1.png")
    (folder / "link").symlink_to(outside)
    (batch,) = image_batches(folder, size=(6, 6), channels=1)
    assert batch.names == ["cat/1.png", "dog/young/1.png", "link"] and len(batch.images) == 2
    assert batch.problems[:2] == [None, None] and "is a folder" in str(batch.problems[2])
