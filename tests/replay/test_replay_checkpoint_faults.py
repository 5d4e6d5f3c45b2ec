"""Saves that fail or are killed, at every call that changes the file system; and files that are not
as they were written.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal

import pytest
from checkpoint_rig import PLAIN, Disk, Run, contents, copy_of, same

from async_loader import Prioritized, ReplayBuffer
from async_loader.errors import ConfigError, CorruptCheckpoint
from async_loader.replay.checkpoint import manifest, writing


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def saved(tmp_path):
    """A folder with two saves."""
    buffer = ReplayBuffer(200, PLAIN, sampler=Prioritized(), seed=0)
    root = tmp_path / "saved"
    for seed in range(2):
        Run(buffer, seed).step(400)
        buffer.save(root)
    return root


def changed(root) -> tuple[ReplayBuffer, ReplayBuffer]:
    """A buffer that has changed since it was loaded; and as it was saved."""
    buffer, before = ReplayBuffer.from_checkpoint(root), ReplayBuffer.from_checkpoint(root)
    Run(buffer, 7).step(60)
    return buffer, before


def left(root) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith("tmp-")]


@pytest.mark.parametrize("half", [False, True], ids=["before", "half-way"])
def test_a_save_that_fails_at_any_call_leaves_the_one_before_it(half, saved, monkeypatch):
    buffer, _ = changed(saved)
    with monkeypatch.context() as patch:
        fails = (counting := Disk(patch)).calls
        buffer.save(copy_of(saved, "counted"))
    assert {"mkdir", "open", "write", "fsync", "rename", "rmtree"} <= set(fails)
    counting.calls = []
    renamed = fails.index("rename")
    for at, name in enumerate(fails):
        if half and name != "write":
            continue
        root = copy_of(saved, f"at {at}")
        buffer, before = changed(root)
        removing = at > renamed + 1  # the new one is in place: the old one is removed next time
        with monkeypatch.context() as patch:
            Disk(patch, at, full_disk, half)
            if removing:
                buffer.save(root)
            else:
                with pytest.raises(OSError, match="No space left"):
                    buffer.save(root)
        found = contents(ReplayBuffer.from_checkpoint(root))
        assert same(found, contents(buffer if at > renamed else before))
        if not removing:
            assert left(root) == []
        Run(buffer, 8).step(10)
        buffer.save(root)
        assert left(root) == []
        assert same(contents(ReplayBuffer.from_checkpoint(root)), contents(buffer))
        shutil.rmtree(root)


def child(root, at: int, half: bool) -> int:
    """A process that goes on from the newest save, and is killed at one call of its own; how it
    ended.
    """
    pid = os.fork()
    if pid == 0:
        try:
            buffer, _ = changed(root)
            disk = Disk(pytest.MonkeyPatch(), at, kill, half)
            buffer.save(root)
        finally:
            os._exit(len(disk.calls))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_call_leaves_the_save_before_it(saved):
    calls = child(copy_of(saved, "counted"), -1, False)
    assert calls > 10
    renamed = False
    for at in range(calls):
        root = copy_of(saved, f"at {at}")
        buffer, before = changed(root)
        assert child(root, at, half=at % 2 == 1) == -signal.SIGKILL
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


# -- corruption ------------------------------------------------------------------------------------

FILES = [f"save-00000002/{name}" for name in ("manifest.json", "data.bin")]


def flip(file, place: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[place % len(raw)] ^= 0x10
    file.write_bytes(raw)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_as_it_was_written_is_refused_by_name(name, saved):
    size = (saved / name).stat().st_size
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
        root = copy_of(saved, f"{what}")
        damage(root / name)
        with pytest.raises(CorruptCheckpoint, match=name):
            ReplayBuffer.from_checkpoint(root)
        buffer = ReplayBuffer(200, PLAIN, sampler=Prioritized())
        Run(buffer, 2).step(5)
        before = contents(buffer)
        with pytest.raises(CorruptCheckpoint, match=name):
            buffer.load(root)
        assert same(contents(buffer), before)


def test_a_manifest_of_another_format_or_byte_order_is_refused(saved, monkeypatch):
    file = saved / FILES[0]
    found = manifest.Manifest.read(file)
    refused = {
        ("FORMAT", 6): r"manifest.json: is of format 6, and this version reads 5",
        ("sys.byteorder", "big"): r"written on a big-endian machine",
    }
    for (name, value), message in refused.items():
        with monkeypatch.context() as patch:
            patch.setattr(f"{manifest.__name__}.{name}", value)
            other = found.text()
        file.write_text(other)
        with pytest.raises(CorruptCheckpoint, match=message):
            manifest.Manifest.read(file)
    for text in ("[]", "{}", "3", "{"):
        file.write_text(
            f'{{"crc32":"{manifest.zlib.crc32(text.encode()):08x}","manifest":{text}}}\n'
        )
        with pytest.raises(CorruptCheckpoint, match="this is no manifest"):
            manifest.Manifest.read(file)


def test_the_newest_save_and_the_one_before_it_stay(saved):
    buffer, before = changed(saved)
    assert buffer.save(saved).number == 3
    assert writing.saves(saved) == [2, 3]
    assert same(contents(ReplayBuffer.from_checkpoint(saved, number=2)), contents(before))
    with pytest.raises(ConfigError, match=r"there is no save 1 in this folder, only 2, 3"):
        ReplayBuffer.from_checkpoint(saved, number=1)
