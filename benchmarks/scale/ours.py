"""A learner of a cluster of shards on this host: the path of data, on which Ray is not."""

from contextlib import ExitStack

from benchmarks.feeder import ours
from benchmarks.feeder.processes import child
from benchmarks.feeder.sampling import timed
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Figures
from benchmarks.replay.workloads import BATCH


def cluster(seconds: float, work: Work, shards: int) -> Figures:
    """Each shard holds its part of the rows."""
    from async_loader.lifecycle import Patience
    from async_loader.scale import Cluster

    with ExitStack() as stack:
        addresses = []
        for number in range(shards):
            _, address = stack.enter_context(ours.serving(work, "ipc"))
            with child(ours.PRELOAD, _fill, address, work, number, shards) as writer:
                writer.hear()
            addresses.append(address)
        client = stack.enter_context(Cluster.static(addresses))
        source, patience = client.table(ours.TABLE).source(), Patience()
        stack.callback(source.close)
        return timed(lambda: source.plan(BATCH, patience).batch, work, seconds)


def _fill(pipe: object, address: str, work: Work, number: int, shards: int) -> None:
    from async_loader.feeder import connect

    with connect(address) as client:
        writer = client.table(ours.TABLE).writer()
        for i, chunk in enumerate(work.chunks()):
            if i % shards == number:
                writer.extend(chunk)
        writer.flush(ours.LIMIT_S)
    pipe.send("filled")  # type: ignore[attr-defined]
