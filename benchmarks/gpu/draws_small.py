"""Uniform draws of 256 small transitions into the accelerator's memory."""

from benchmarks.gpu import draws, sides
from benchmarks.gpu.timing import Take
from benchmarks.replay import workloads

WORK = workloads.Small(128 * 1024)
BATCH = workloads.BATCH


def _check(take: Take) -> None:
    obs, _, _, next_obs, _ = (tensor.cpu() for tensor in take())
    workloads.check_rows({"obs": obs, "next_obs": next_obs})


ROW = draws.row(
    "draws-small",
    f"{BATCH} small transitions of {WORK.rows:,}, in the accelerator's memory",
    WORK,
    BATCH,
    {
        "async_loader": sides.loader,
        "async_loader, linked": sides.linked,
        "async_loader, table on the device": sides.on_device,
    },
    _check,
)
