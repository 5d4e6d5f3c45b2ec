"""Uniform draws of 256 transitions of two stacks of four frames into the accelerator's memory."""

from benchmarks.gpu import draws, sides
from benchmarks.gpu.timing import Take
from benchmarks.replay import workloads

WORK = workloads.Atari(9 * workloads.EPISODE)
BATCH = workloads.BATCH


def check(take: Take) -> None:
    obs, _, _, next_obs, terminated = (tensor.cpu() for tensor in take())
    workloads.check_stacks(obs, next_obs, terminated)


ROW = draws.row(
    "draws-atari",
    f"{BATCH} transitions of two 4x84x84 stacks, of {WORK.rows:,}, in the accelerator's memory",
    WORK,
    BATCH,
    {
        "async_loader": sides.loader,
        "async_loader, linked frames": sides.linked,
        "async_loader, table on the device": sides.on_device,
    },
    check,
)
