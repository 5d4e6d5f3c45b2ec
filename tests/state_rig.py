"""Data sets and samplers that keep a state, for tests of loaders that go on from one."""

from __future__ import annotations

from torch.utils.data import Dataset, IterableDataset, get_worker_info

N = 10


class Kept:
    """Has the named attributes as its state."""

    keeps: tuple[str, ...] = ()

    def state_dict(self):
        return {name: getattr(self, name) for name in self.keeps}

    def load_state_dict(self, state):
        for name in self.keeps:
            setattr(self, name, state[name])


def _share():
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Stateless(IterableDataset):
    def __iter__(self):
        first, step = _share()
        return iter(range(first, N, step))


class Epochs(Kept, IterableDataset):
    """Starts over at its end, and counts that."""

    keeps = ("at", "epoch")
    at = epoch = 0

    def __iter__(self):
        first, step = _share()
        while first + self.at * step < N:
            self.at += 1
            yield 100 * self.epoch + first + (self.at - 1) * step
        self.at, self.epoch = 0, self.epoch + 1


class Steps(Kept):
    keeps = ("at",)

    def __init__(self, stop):
        self.first, self.step = _share()
        self.at, self.stop = 0, stop

    def __iter__(self):
        return self

    def __next__(self):
        item = self.first + self.at * self.step
        if item >= self.stop:
            raise StopIteration
        self.at += 1
        return item


class OfSteps(IterableDataset):
    """The iterator has a state."""

    def __iter__(self):
        return Steps(N)


class Both(Kept, IterableDataset):
    """Dataset and iterator have states of different formats."""

    keeps = ("stop",)
    stop = N

    def __iter__(self):
        return Steps(self.stop)


class Own(Kept, IterableDataset):
    """Its own iterator, set up on access."""

    keeps = ("place",)

    def __iter__(self):
        self.place = list(_share())
        return self

    def __next__(self):
        item, step = self.place
        if item >= N:
            raise StopIteration
        self.place[0] += step
        return item


class Noisy(Kept, Dataset):
    """Items with numbers of a generator of its own."""

    keeps = ("numbers",)

    def __init__(self):
        self.numbers = 7

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.numbers = self.numbers * 75 % 65537
        return 1000 * i + self.numbers % 1000


class Sampler(Kept):
    """Counts its epochs, and starts over after its last index."""

    keeps = ("at", "epoch")
    at = epoch = 0

    def __iter__(self):
        while self.at < N:
            self.at += 1
            yield (self.at - 1 + self.epoch) % N
        self.at, self.epoch = 0, self.epoch + 1

    def __len__(self):
        return N


class Distributed(Kept):
    """As torchdata's StatefulDistributedSampler: it is set back by the next epoch,
    not at the end of its own.
    """

    keeps = ("yielded",)
    yielded, resumed = 0, None

    def __iter__(self):
        self.yielded, self.resumed = self.resumed or 0, None
        for index in range(self.yielded, N):
            self.yielded += 1
            yield index

    def load_state_dict(self, state):
        self.resumed = state["yielded"]

    def __len__(self):
        return N


class OfIterators:
    def __iter__(self):
        return Steps(N)

    def __len__(self):
        return N
