"""slime's and miles' data source, on a table of rollouts.

With ``--rollout-function-path async_loader.compat.slime.generate_rollout``, and
``--data-source-path`` of a class of the program's own, since the trainer gives it ``args`` alone::

    class Math(DataSource):
        def __init__(self, args):
            super().__init__(args, connect("tcp://host:5555").table("math"), Sample)

Generators are processes that use ``table.groups(prompts)``, or a rollout function of the program's
own, which gives finished groups to `DataSource.add_samples`.
"""

from __future__ import annotations

from typing import Any

from async_loader.compat.drawn_groups import DrawnGroups, Groups
from async_loader.errors import ConfigError
from async_loader.public_names import set_public_names
from async_loader.rollouts.rollouts import Rollouts
from async_loader.rollouts.schema import Ragged
from async_loader.rollouts.states import MEMBER_BITS

__all__ = ["SCHEMA", "DataSource", "generate_rollout"]
set_public_names(globals())

SCHEMA = {
    "tokens": Ragged("int32"),  # of prompt and response
    "loss_mask": Ragged("int8"),
    "rollout_log_probs": Ragged("float32"),
    "response_length": "int32",
    "reward": "float32",
    "truncated": "bool",
}
"""The fields of a ``Sample`` that are kept. Further fields are attributes of the same names."""

_OF_RESPONSE = "loss_mask", "rollout_log_probs"
"""Fields that a ``Sample`` has for its response; here, zeros stand for the prompt."""


class DataSource:
    """The learner's end of a table, as the ``DataSource`` of slime and miles.

    A group counts as trained when more are asked for, or at the save of its rollout. Say
    ``--num-rollout``: the length is the number of groups that are ready.

    Threads: one at a time.

    Parameters
    ----------
    args : namespace
        The trainer's: ``rollout_batch_size``, ``save`` and ``load`` are read.
    table : Rollouts | RolloutsClient
        With `SCHEMA`, and batches of ``rollout_batch_size`` groups.
    sample : type
        The trainer's ``Sample``.
    timeout_s : float | None
        For a batch, and for each group that is added.
    **wishes
        See `Rollouts.source`.
    """

    def __init__(
        self, args: Any, table: Any, sample: Any, timeout_s: float | None = 3600, **wishes: Any
    ) -> None:
        self.args, self.table, self.rollout_id = args, table, -1
        self._type, self._timeout_s = sample, timeout_s
        self._drawn = DrawnGroups(table, **wishes)
        if self._drawn.source.batch_size != args.rollout_batch_size:
            raise ConfigError(
                f"rollout_batch_size={args.rollout_batch_size}, the table has batches of "
                f"{self._drawn.source.batch_size} groups: say the same"
            )

    def get_samples(self, num_samples: int) -> Groups:
        """Return the next groups of a batch, at most this number; none at the end.

        Raises Timeout.
        """
        groups = self._drawn.take(num_samples, self._timeout_s)
        return [[self._sample(one) for one in group] for group in groups]

    def add_samples(self, samples: Groups) -> None:
        """Commit finished groups. A reward that is None may come later.

        Raises
        ------
        Timeout
            There is no slot: the table has all groups by which the learner may lag behind.
        ConfigError
            A sample is not finished. Its group was not added.
        """
        for group in samples:
            with self.table.reserve(name="added", timeout_s=self._timeout_s) as made:
                for sample in group:
                    made.append(**self._fields(sample))

    def save(self, rollout_id: int) -> None:
        """Save the table: this rollout is trained, one that was taken later is not."""
        if self.rollout_id <= rollout_id:
            self._drawn.settle()
        self.table.save(self._path(self.args.save, rollout_id))

    def load(self, rollout_id: int | None = None) -> None:
        """Go on from a `save`; nothing at the start of a run. Raises OSError."""
        if self.args.load and rollout_id not in (None, -1):
            self.table.load(self._path(self.args.load, rollout_id))

    def __len__(self) -> int:
        """Return the number of groups that are ready."""
        return len(self.table)

    get_buffer_length = __len__

    def _path(self, folder: str, rollout_id: object) -> str:
        """Return where a table of this process is saved; a feeder has a folder of its own."""
        name = f"rollout_{rollout_id}"
        return f"{folder}/{name}" if isinstance(self.table, Rollouts) else name

    def _sample(self, member: dict[str, Any]) -> Any:
        index = int(member.pop("index"))
        status = self._type.Status("truncated" if member.pop("truncated") else "completed")
        sample = self._type(index=index, group_index=index >> MEMBER_BITS, status=status)
        for name, value in member.items():
            if name in _OF_RESPONSE:
                value = value[len(value) - member["response_length"] :]
            setattr(sample, name, value.tolist())
        return sample

    def _fields(self, sample: Any) -> dict[str, Any]:
        """Return the fields of a finished sample; those that are None are left out."""
        length, status = sample.response_length, sample.status.value
        if status in ("pending", "aborted"):
            raise ConfigError(
                f"a sample is {status}: add finished groups, and give prompts back in a generator"
            )
        mask = sample.loss_mask or [1] * length
        fields = vars(sample) | {"loss_mask": mask, "truncated": status == "truncated"}
        for name in _OF_RESPONSE:
            fields[name] = [0] * (len(sample.tokens) - length) + (fields[name] or [])
        names = self.table.group_schema.fields
        return {name: fields[name] for name in names if fields[name] is not None}


def generate_rollout(
    args: Any, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> Groups:
    """Return the groups of a rollout, for ``--rollout-function-path``. Raises ConfigError."""
    if evaluation:
        raise ConfigError("a table has no evaluation: say --eval-function-path")
    data_source.table.publish(rollout_id)
    data_source.rollout_id = rollout_id
    return data_source.get_samples(args.rollout_batch_size)
