"""A LeRobot dataset of version 3 behind a loader: every frame is that of a direct decode."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from async_loader import AsyncDataLoader
from async_loader.offline import BadData
from async_loader.source import Window

pytest.importorskip("av")
pytest.importorskip("pyarrow")


from async_loader.offline.lerobot import LeRobotSource
from tests.offline import lerobot_rig as rig


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return rig.write(tmp_path_factory.mktemp("lerobot"))


@pytest.fixture
def copy(tmp_path) -> Path:
    return rig.write(tmp_path / "copy")


def read(source: LeRobotSource, index) -> dict[str, np.ndarray]:
    index = np.asarray(index, np.int64)
    fields = source.schema.fields
    arrays = [np.zeros((len(index), *one.shape), one.dtype) for one in fields]
    reader = source.reader()
    reader.read(index, Window(arrays), (0,))
    reader.close()
    return dict(zip((one.name for one in fields), arrays, strict=True))


def test_every_frame_in_any_order_is_that_of_a_direct_decode(dataset):
    source = LeRobotSource(dataset, seed=0)
    index = np.random.default_rng(0).permutation(np.tile(np.arange(39), 2))
    batch = read(source, index)
    for key in rig.KEYS:
        wanted = np.stack(rig.decoded(dataset, key))
        np.testing.assert_array_equal(batch[key], wanted[index])
        apart = np.abs(batch[key].astype(int) - [rig.frame(rig.KEYS.index(key), i) for i in index])
        assert apart.mean() < 25  # lossy, but the right ones
    owner = np.repeat([0, 1, 2], [12, 20, 7])
    np.testing.assert_array_equal(batch["episode_index"], owner[index])
    np.testing.assert_array_equal(batch["frame_index"], index - np.array([0, 12, 32])[owner[index]])
    np.testing.assert_allclose(batch["timestamp"], batch["frame_index"] / 10, rtol=1e-6)
    np.testing.assert_array_equal(batch["observation.state"][:, 2], index + 0.5)
    np.testing.assert_array_equal(batch["action"], index[:, None] * [1.0, -1.0])
    np.testing.assert_array_equal(batch["next.done"], np.isin(index, [11, 31, 38]))
    assert [source.tasks[i] for i in batch["task_index"][:3]] == [
        rig.TASKS[owner[i] % 2] for i in index[:3]
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_decodes_in_its_workers(dataset, workers):
    source = LeRobotSource(dataset, fields=[rig.KEYS[1], "action"], seed=0)
    wanted = np.stack(rig.decoded(dataset, rig.KEYS[1]))
    with AsyncDataLoader(source, 16, num_workers=workers, batch_format="numpy") as loader:
        for _ in range(6):
            batch = next(loader)
            np.testing.assert_array_equal(batch[rig.KEYS[1]], wanted[batch["index"]])
            np.testing.assert_array_equal(batch["action"][:, 0], batch["index"])
    source.reader().close()


def test_a_window_shows_frames_around_the_one_that_is_drawn_and_says_what_is_beyond(dataset):
    key = rig.KEYS[0]
    source = LeRobotSource(
        dataset, fields=[key, "action"], windows={key: [-0.2, 0.0], "action": [0.0, 0.1, 0.3]}
    )
    index = np.array([0, 11, 12, 25, 38])
    first, last = np.array([0, 0, 12, 12, 32]), np.array([11, 11, 31, 31, 38])
    batch, wanted = read(source, index), np.stack(rig.decoded(dataset, key))
    before = index - 2
    np.testing.assert_array_equal(batch[key][:, 0], wanted[np.maximum(before, first)])
    np.testing.assert_array_equal(batch[key][:, 1], wanted[index])
    np.testing.assert_array_equal(batch[f"{key}_is_pad"][:, 0], before < first)
    after = index[:, None] + [0, 1, 3]
    np.testing.assert_array_equal(batch["action"][:, :, 0], np.minimum(after, last[:, None]))
    np.testing.assert_array_equal(batch["action_is_pad"], after > last[:, None])


def _rewrite(root: Path, **entries: object) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: (root / "meta/info.json").unlink(), "cannot be read as the meta/info.json"),
        (lambda root: (root / "meta/info.json").write_text("{"), "cannot be read"),
        (lambda root: _rewrite(root, codebase_version="v2.1"), "convert_dataset_v21_to_v30"),
        (lambda root: _rewrite(root, total_frames=50), "files are missing"),
        (lambda root: (root / "meta/tasks.parquet").unlink(), "tasks.parquet: it cannot be read"),
        (
            lambda root: (root / "data/chunk-000/file-001.parquet").unlink(),
            "001.parquet: it cannot be",
        ),
        (
            lambda root: (root / "data/chunk-000/file-001.parquet").write_bytes(b"PAR1junk"),
            "cannot be read as parquet",
        ),
    ],
)
def test_what_is_missing_or_damaged_is_named_with_its_file_before_anything_starts(
    copy, spoil, said
):
    spoil(copy)
    with pytest.raises(BadData, match=said):
        LeRobotSource(copy)
