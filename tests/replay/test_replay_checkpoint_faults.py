"""Saves that fail or are killed, at every call that changes the file system; and files that are not
as they were written.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal

import numpy as np
import pytest
from checkpoint_rig import PLAIN, CountingDisk, Run, contents, copy_of, same

from async_loader import Prioritized, ReplayBuffer
from async_loader.errors import ConfigError, CorruptCheckpoint
from async_loader.replay.checkpoint import folder, manifest
from async_loader.testing.debug import debug_state


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def saved(tmp_path):
    """A folder with a full save and an increment, and a buffer that goes on from it."""
    buffer = ReplayBuffer(200, PLAIN, sampler=Prioritized(), seed=0)
    Run(buffer, 1).step(800)
    root = tmp_path / "saved"
    buffer.save(root)
    Run(buffer, 2).step(10)
    assert buffer.save(root).kind in ("full", "incremental")
    return root


def whole(root, kind: str) -> tuple[ReplayBuffer, ReplayBuffer]:
    """A buffer that has changed since it was loaded, so that its next save is of that kind; and as
    it was saved.
    """
    buffer, before = ReplayBuffer.from_checkpoint(root), ReplayBuffer.from_checkpoint(root)
    if kind == "full":
        debug_state(buffer).saver.last = None
    Run(buffer, 7).step(60)
    return buffer, before


def left(root) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith("tmp-")]


@pytest.mark.parametrize("half", [False, True], ids=["before", "half-way"])
@pytest.mark.parametrize("kind", ["full", "incremental"])
def test_a_save_that_fails_at_any_call_leaves_the_one_before_it(kind, half, saved, tmp_path):
    buffer, _ = whole(saved, kind)
    counting = debug_state(buffer).saver.disk = CountingDisk()
    buffer.save(copy_of(saved, "counted"))
    fails = list(counting.calls)
    assert {"make_folder", "create", "write", "sync", "close", "sync_folder", "rename"} <= set(
        fails
    )
    for at, name in enumerate(fails):
        if half and name != "write":
            continue
        root = copy_of(saved, f"at {at}")
        buffer, before = whole(root, kind)
        debug_state(buffer).saver.disk = CountingDisk(at, full_disk, half)
        removing = name.startswith("remove") or (name == "rename" and at > fails.index("rename"))
        if removing:  # the new one is in place: what it replaces is removed next time
            buffer.save(root)
        else:
            with pytest.raises(OSError, match="No space left"):
                buffer.save(root)
        found = contents(ReplayBuffer.from_checkpoint(root))
        assert same(
            found, contents(buffer) if removing or at > fails.index("rename") else contents(before)
        )
        if not removing:
            assert left(root) == []
        debug_state(buffer).saver.disk = CountingDisk()
        Run(buffer, 8).step(10)
        buffer.save(root)
        assert left(root) == []
        assert same(contents(ReplayBuffer.from_checkpoint(root)), contents(buffer))
        shutil.rmtree(root)


def child(root, kind: str, at: int, half: bool) -> int:
    """A process that goes on from the newest save, and is killed at one call of its own; how it
    ended.
    """
    pid = os.fork()
    if pid == 0:
        try:
            buffer, _ = whole(root, kind)
            debug_state(buffer).saver.disk = CountingDisk(at, kill, half)
            buffer.save(root)
        finally:
            os._exit(len(debug_state(buffer).saver.disk.calls))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "incremental"])
def test_a_process_that_is_killed_at_any_call_leaves_the_save_before_it(kind, saved):
    calls = child(copy_of(saved, "counted"), kind, -1, False)
    assert calls > 10
    renamed = False
    for at in range(calls):
        root = copy_of(saved, f"at {at}")
        buffer, before = whole(root, kind)
        assert child(root, kind, at, half=at % 2 == 1) == -signal.SIGKILL
        loaded = ReplayBuffer.from_checkpoint(root)
        new, old = (
            same(contents(loaded), contents(buffer)),
            same(contents(loaded), contents(before)),
        )
        assert new != old
        assert new >= renamed  # once the new one is there it stays
        renamed = new
        Run(loaded, 8).step(10)
        loaded.save(root)
        assert left(root) == []
        assert same(contents(ReplayBuffer.from_checkpoint(root)), contents(loaded))
        shutil.rmtree(root)
    assert renamed


def test_what_a_failed_save_took_is_in_the_next_one(saved):
    buffer, _ = whole(saved, "incremental")
    for at in (2, 4, 5):
        debug_state(buffer).saver.disk = CountingDisk(at, full_disk)
        with pytest.raises(OSError, match="No space left"):
            buffer.save(saved)
        buffer.add(obs=np.zeros(3, np.float32), reward=0, done=False)
    debug_state(buffer).saver.disk = CountingDisk()
    buffer.save(saved)
    assert same(contents(ReplayBuffer.from_checkpoint(saved)), contents(buffer))


# -- corruption ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A folder with a full save and two increments."""
    root = tmp_path_factory.mktemp("chain") / "saved"
    buffer = ReplayBuffer(8000, PLAIN, sampler=Prioritized(), seed=0)
    for _ in range(3):
        buffer.extend(
            obs=np.ones((6000, 3), np.float32),
            reward=np.arange(6000, dtype=np.float32),
            done=np.zeros(6000, np.bool_),
        )
    buffer.sample(10)
    kinds = [buffer.save(root).kind]
    for turn in range(2):
        Run(buffer, turn).step(20)
        kinds.append(buffer.save(root).kind)
    assert kinds == ["full", "incremental", "incremental"]
    return root


FILES = [
    f"save-{number:08}/{name}" for number in (1, 2, 3) for name in ("manifest.json", "data.bin")
]


def flip(file, place: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[place % len(raw)] ^= 0x10
    file.write_bytes(raw)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_as_it_was_written_is_refused_by_name(name, chain):
    size = (chain / name).stat().st_size
    damages = {
        "deleted": lambda file: file.unlink(),
        "cut off": lambda file: os.truncate(file, size - 1),
        "emptied": lambda file: os.truncate(file, 0),
        "longer": lambda file: file.write_bytes(file.read_bytes() + b" "),
        **{
            f"flipped {at}": lambda file, at=at: flip(file, at)
            for at in (0, 9, size // 3, size // 2, size - 40, size - 1)
        },
    }
    for what, damage in damages.items():
        root = copy_of(chain, f"{what}")
        damage(root / name)
        with pytest.raises(CorruptCheckpoint, match=name) as raised:
            ReplayBuffer.from_checkpoint(root)
        number = int(name[5:13])
        if number > 1:
            assert f"load it with number={number - 1})" in str(raised.value)
            assert len(ReplayBuffer.from_checkpoint(root, number=number - 1)) > 0
        else:
            assert "no older save in the same folder is whole" in str(raised.value)
        shutil.rmtree(root)


def test_a_manifest_of_another_format_or_byte_order_is_refused(chain, monkeypatch):
    file = chain / FILES[-2]
    found = manifest.Manifest.of(file.read_bytes(), file)
    monkeypatch.setattr(manifest, "FORMAT", manifest.FORMAT + 1)
    newer = found.text().encode()
    monkeypatch.undo()
    with pytest.raises(
        CorruptCheckpoint, match=r"manifest.json: is of format 4, and this version reads 3"
    ):
        manifest.Manifest.of(newer, file)
    monkeypatch.setattr(manifest.sys, "byteorder", "big")
    other = found.text().encode()
    monkeypatch.undo()
    with pytest.raises(CorruptCheckpoint, match=r"written on a big-endian machine"):
        manifest.Manifest.of(other, file)
    for text in ("[]", "{}", "3", "{"):
        body = f'{{"crc32":"{manifest.zlib.crc32(text.encode()):08x}","manifest":{text}}}\n'
        with pytest.raises(CorruptCheckpoint, match="this is no manifest"):
            manifest.Manifest.of(body.encode(), file)


def test_an_older_save_is_loaded_by_its_number(chain):
    root = copy_of(chain, "older")
    lengths = [
        ReplayBuffer.from_checkpoint(root, number=number).stats().inserted for number in (1, 2, 3)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[2]
    older = ReplayBuffer.from_checkpoint(root, number=2)
    report = older.save(root)
    assert (report.kind, report.number) == ("full", 4)
    assert folder.saves(root) == [4]
    assert same(contents(ReplayBuffer.from_checkpoint(root)), contents(older))
    with pytest.raises(ConfigError, match=r"there is no save 2 in this folder, only 4"):
        ReplayBuffer.from_checkpoint(root, number=2)
