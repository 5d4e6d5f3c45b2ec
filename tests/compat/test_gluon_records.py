"""Record files: read back the output of mxnet's writer, also by several workers at a time."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader.compat import gluon
from async_loader.compat import gluonnlp as nlp

MAGIC = struct.pack("<I", 0xCED7230A)


def write(path: Path, records: list[bytes]) -> str:
    """By the format's description: records with the magic word at a multiple
    of four are cut there.
    """
    out, index = bytearray(), []
    for key, data in enumerate(records):
        index.append(f"{key}\t{len(out)}\n")
        cuts = [i for i in range(0, len(data) - 3, 4) if data[i : i + 4] == MAGIC]
        starts, ends = [0, *(cut + 4 for cut in cuts)], [*cuts, len(data)]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            kind = 0 if not cuts else 1 if number == 0 else 3 if number == len(cuts) else 2
            out += MAGIC + struct.pack("<I", kind << 29 | (end - start)) + data[start:end]
            out += bytes(-(end - start) % 4)
    path.with_suffix(".rec").write_bytes(out)
    path.with_suffix(".idx").write_text("".join(index))
    return str(path.with_suffix(".rec"))


@given(
    st.lists(
        st.lists(st.sampled_from([b"a", b"bcd", b"1234", MAGIC]), max_size=6).map(b"".join),
        min_size=1,
        max_size=6,
    )
)
def test_records_are_read_as_they_were_written(tmp_path_factory, records):
    dataset = gluon.data.RecordFileDataset(
        write(tmp_path_factory.mktemp("records") / "data", records)
    )
    assert [dataset[i] for i in range(len(dataset))] == records
    assert pickle.loads(pickle.dumps(dataset))[-1] == records[-1]


def test_a_file_that_mxnet_wrote(tmp_path):
    """Two records, of which the second holds the magic word:
    the bytes are those of mxnet 1.9.1's MXIndexedRecordIO.
    """
    text = (
        "0a23d7ce0500000068656c6c6f000000"
        + "0a23d7ce0400002061626364"
        + "0a23d7ce020000606566"
        + "0000"
    )
    (tmp_path / "data.rec").write_bytes(bytes.fromhex(text))
    (tmp_path / "data.idx").write_text("0\t0\n7\t16\n")
    dataset = gluon.data.RecordFileDataset(tmp_path / "data.rec")
    assert [dataset[0], dataset[1]] == [b"hello", b"abcd" + MAGIC + b"ef"]


@pytest.mark.parametrize("kind", [{}, {"num_workers": 2}, {"num_workers": 2, "thread_pool": True}])
def test_workers_read_side_by_side_and_transform(tmp_path, kind):
    images = np.random.default_rng(0).integers(0, 255, (60, 5, 5), dtype=np.uint8)
    name = write(
        tmp_path / "images", [bytes([i]) + image.tobytes() for i, image in enumerate(images)]
    )
    dataset = gluon.data.RecordFileDataset(name).transform(
        lambda record: (np.frombuffer(record, np.uint8, offset=1).reshape(5, 5), record[0])
    )
    loader = gluon.data.DataLoader(
        dataset.transform_first(lambda image: image.astype(np.float32) / 255), 7, **kind
    )
    seen = 0
    for image, label in loader:
        assert np.array_equal(image.numpy(), images[label].astype(np.float32) / 255)
        seen += len(label)
    assert seen == 60
    shards = next(iter(nlp.data.ShardedDataLoader(dataset, batch_sampler=[[[3, 4], [5]]], **kind)))
    assert [label.tolist() for _, label in shards] == [[3, 4], [5]]


def test_what_is_no_record_file_says_so(tmp_path):
    name = write(tmp_path / "data", [b"hello", b"again"])
    Path(name).with_suffix(".idx").write_text("0\t4\n")
    with pytest.raises(ValueError, match="no record at byte 4"):
        gluon.data.RecordFileDataset(name)[0]
    Path(name).with_suffix(".idx").write_text("0 \n")
    with pytest.raises(ValueError, match="not an index of records"):
        gluon.data.RecordFileDataset(name)
    Path(name).with_suffix(".idx").write_text("0\t0\n")
    Path(name).write_bytes(Path(name).read_bytes()[:10])
    with pytest.raises(ValueError, match="2 of 5 bytes"):
        gluon.data.RecordFileDataset(name)[0]
    with pytest.raises(FileNotFoundError):
        gluon.data.RecordFileDataset(tmp_path / "none.rec")
