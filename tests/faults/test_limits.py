"""Too few descriptors, too little memory, too late a function, an unguarded script: one clear
sentence each.
"""

from __future__ import annotations

import pytest
from fault_rig import SLACK_S, Batches, Script, first, wide

from async_loader import AsyncDataLoader
from async_loader.errors import OutOfMemory
from async_loader.shm import segment


def test_64_descriptors_are_too_few_for_16_workers_and_none_is_left(tmp_path):
    body = """\
        import resource
        from async_loader.errors import ResourceLimit

        import torch
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            AsyncDataLoader(Batches(), 4, num_workers=16, multiprocessing_context="fork")
        except ResourceLimit as error:
            say("refused", error)
        import multiprocessing
        say("children", len(multiprocessing.active_children()), threading.active_count())
        with AsyncDataLoader(Batches(), 4, num_workers=2, multiprocessing_context="fork") as loader:
            say("got", *(first(next(loader)) for _ in range(3)))
    """
    with Script(tmp_path, body) as script:
        text = " ".join(script.read("refused"))
        assert "Too many open files: use fewer, or raise the limit (ulimit -u, -n)" in text
        assert script.read("children") == ["0", "1"]
        assert script.read("got") == ["0", "4", "8"]
        assert script.end() == (0, "")


# -- memory ----------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(segment, "available_bytes", lambda: 3 << 20)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_does_not_fit_is_refused_by_next_otherwise(little_memory, workers):
    with AsyncDataLoader(
        Batches(make=wide),
        32,
        num_workers=workers,
        multiprocessing_context="fork",
        timeout_s=SLACK_S,
    ) as loader:
        seen = []
        while not any(isinstance(s, OutOfMemory) for s in seen):
            try:
                seen.append(first(next(loader)))
            except OutOfMemory as error:
                seen.append(error)
        assert "needs" in str(seen[-1])
        assert "3.0 MiB are available" in str(seen[-1])


# -- how workers start -----------------------------------------------------------------------------


@pytest.mark.slow
def test_an_unguarded_script_is_told_in_one_sentence_what_it_lacks(tmp_path):
    body = """\
        with AsyncDataLoader(Batches(), 4, num_workers=2,
                multiprocessing_context=sys.argv[1]) as loader:
            next(loader)
    """
    for method in ("spawn", "forkserver"):
        folder = tmp_path / method[:2]
        folder.mkdir()
        with Script(folder, body, method) as script:
            code, err = script.end()
            assert code == 1
            last = err.strip().splitlines()[-1]
            assert last.startswith("async_loader.errors.")
            assert 'under if __name__ == "__main__"' in last
            script.wait_until_gone()
