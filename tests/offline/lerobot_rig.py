"""A small LeRobot dataset of version 3.0, written with pyarrow and PyAV alone."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
from pyarrow import parquet

FPS, HEIGHT, WIDTH = 10, 48, 64
KEYS = ("observation.images.top", "observation.images.wrist")
TASKS = ("push the T", "lift the cube")


def frame(key: int, number: int) -> np.ndarray:
    """A frame that says which it is, also after lossy coding."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    red = (rows * 4 + number * 9 + key * 60) % 256
    return np.stack([red, (columns * 3 + number * 5) % 256, 0 * red + number], axis=2).astype(
        np.uint8
    )


def write_video(path: Path, key: int, numbers: list[int], gop: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.gop_size = gop
        for number in numbers:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame(key, number), "rgb24")))
        container.mux(stream.encode())


def write(root: Path, lengths: tuple[int, ...] = (12, 20, 7), gop: int = 6) -> Path:
    """Write episodes of these lengths: the last in files of its own, the others together."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    total, last = int(ends[-1]), len(lengths) - 1
    chunks = [range(starts[last]), range(starts[last], total)]
    features = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": [2], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        **{
            name: {"dtype": "int64", "shape": [1], "names": None}
            for name in ("frame_index", "episode_index", "index", "task_index")
        },
        **{
            key: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "c"]}
            for key in KEYS
        },
    }
    info = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "total_episodes": len(lengths),
        "total_frames": total,
        "total_tasks": len(TASKS),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / folder).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    tasks = {"task_index": range(len(TASKS)), "__index_level_0__": TASKS}
    parquet.write_table(pa.table(tasks), root / "meta/tasks.parquet")
    episodes = {
        "episode_index": range(len(lengths)),
        "length": lengths,
        "dataset_from_index": starts,
        "dataset_to_index": ends,
        "data/chunk_index": [0] * len(lengths),
        "data/file_index": [int(i == last) for i in range(len(lengths))],
    }
    for key in KEYS:
        episodes[f"videos/{key}/chunk_index"] = episodes["data/chunk_index"]
        episodes[f"videos/{key}/file_index"] = episodes["data/file_index"]
        times = [0.0 if i == last else starts[i] / FPS for i in range(len(lengths))]
        episodes[f"videos/{key}/from_timestamp"] = times
    parquet.write_table(
        pa.table({name: pa.array(list(v)) for name, v in episodes.items()}),
        root / "meta/episodes/chunk-000/file-000.parquet",
    )
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for number, rows in enumerate(chunks):
        index = np.array(rows)
        within = index - starts[owner[index]]
        columns = {
            "observation.state": pa.array((index[:, None] + [0.0, 0.25, 0.5]).tolist()),
            "action": pa.array((index[:, None] * [1.0, -1.0]).tolist(), pa.list_(pa.float32())),
            "next.done": pa.array((index == ends[owner[index]] - 1).tolist()),
            "timestamp": pa.array((within / FPS).astype(np.float32)),
            "frame_index": pa.array(within),
            "episode_index": pa.array(owner[index]),
            "index": pa.array(index),
            "task_index": pa.array(owner[index] % 2),
        }
        parquet.write_table(pa.table(columns), root / f"data/chunk-000/file-{number:03d}.parquet")
        for at, key in enumerate(KEYS):
            path = root / f"videos/{key}/chunk-000/file-{number:03d}.mp4"
            write_video(path, at, index.tolist(), gop)
    return root


def decoded(root: Path, key: str) -> list[np.ndarray]:
    """All frames of a video feature, decoded one after the other."""
    found = []
    for path in sorted((root / "videos" / key).glob("*/*.mp4")):
        with av.open(str(path)) as container:
            found += [one.to_ndarray(format="rgb24") for one in container.decode(video=0)]
    return found
