"""The user forks, also while holding batches: neither process disturbs the other's loader."""

from __future__ import annotations

import textwrap

import pytest
from fault_rig import Script

PREPARE = """\
    import warnings

    from async_loader.errors import Closed

    # from Python 3.12 on
    warnings.filterwarnings("ignore", ".*is multi-threaded, use of fork", DeprecationWarning)

    def forked(child):
        '''Run ``child`` in a forked process and wait for it; its exit code.'''
        pid = os.fork()
        if pid == 0:
            code = 9
            try:
                code = child() or 0
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def gate():
        read, write = os.pipe()
        return (lambda: os.read(read, 1)), (lambda: os.write(write, b"x"))

    workers = int(sys.argv[1])
    loader = AsyncDataLoader(Batches(make=wide), 4, num_workers=workers,
            multiprocessing_context="fork", timeout_s=60, seed=0)
"""


def run(folder, workers, body):
    with Script(folder, textwrap.dedent(PREPARE) + textwrap.dedent(body), str(workers)) as script:
        code, err = script.end_with_output()
        assert (code, err) == (0, ""), err
        script.wait_until_gone()
        return script.said


@pytest.fixture(params=[0, 2])
def workers(request):
    return request.param


@pytest.mark.slow
def test_later_batches_of_the_parent_never_show_up_in_the_childs_tensors(tmp_path, workers):
    body = """\
        held = [next(loader) for _ in range(3)]
        numbers = [first(b) for b in held]
        slots = {b["x"].data_ptr() for b in held}
        wait, go = gate()
        pid = os.fork()
        if pid == 0:
            wait()  # until the parent has gone on
            good = [first(b) for b in held] == numbers
            os._exit(0 if good else 5)
        ring = loader._engine.core.slots.ring
        say("lent", ring.lent, ring.retired)
        del held
        for _ in range(4 * ring.count):
            batch = next(loader)
            first(batch)
            assert batch["x"].data_ptr() not in slots
        go()
        say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        loader.close()
    """
    said = run(tmp_path, workers, body)
    assert said["child"] == ["0"]
    assert said["lent"] == ["0", "3"]


@pytest.mark.slow
def test_whatever_a_child_does_with_its_copy_the_parents_loader_goes_on(tmp_path, workers):
    body = """\
        held = [next(loader) for _ in range(2)]
        numbers = [first(b) for b in held]

        def child(way):
            global loader, held
            if way == "next":
                for _ in range(2):
                    try:
                        next(loader)
                        return 3
                    except Closed as error:
                        assert f"belongs to process {os.getppid()}" in str(error)
            if way == "close":
                loader.close()
            if way == "del":
                del loader, held
                gc.collect()
            if way == "exec":
                os.execv("/bin/true", ["true"])

        begin = 8
        for way in ("next", "close", "del", "exec", "exit"):
            if way == "exit":
                pid = os.fork()
                if pid == 0:
                    # with atexit handlers, multiprocessing's too, which ends its children
                    sys.exit(0)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            else:
                code = forked(functools.partial(child, way))
            assert [first(b) for b in held] == numbers
            after = [first(next(loader)) for _ in range(20)]
            assert after == list(range(begin, begin + 80, 4)), after
            begin += 80
            say(way, code, loader.stats().workers_replaced)
        loader.close()
    """
    said = run(tmp_path, workers, body)
    assert said == {way: ["0", "0"] for way in ("next", "close", "del", "exec", "exit")}


def test_a_forked_child_may_build_a_loader_of_its_own(tmp_path):
    body = """\
        first(next(loader))

        def child():
            with AsyncDataLoader(Batches(make=wide), 4, num_workers=workers,
                    multiprocessing_context="fork", timeout_s=60) as own:
                return 0 if [first(next(own)) for _ in range(10)] == list(range(0, 40, 4)) else 4

        say("child", forked(child))
        assert [first(next(loader)) for _ in range(5)] == [4, 8, 12, 16, 20]
        loader.close()
    """
    assert run(tmp_path, 2, body)["child"] == ["0"]
