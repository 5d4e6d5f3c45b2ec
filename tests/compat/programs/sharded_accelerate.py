"""One process of two: what accelerate gives it of a shuffled set,
by the loader that it prepares.
"""

import json
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from async_loader.compat import accelerate
from async_loader.compat.torch import DataLoader


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return i, i * i


def main(out, stateful):
    accelerate.install()
    torch.manual_seed(0)
    config = DataLoaderConfiguration(use_stateful_dataloader=stateful)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    loader = accelerator.prepare(DataLoader(Squares(), 4, shuffle=True, num_workers=1))
    epochs = [[i for index, _ in loader for i in index.tolist()] for _ in range(2)]
    base = loader.base_dataloader
    found = {"epochs": epochs, "kind": f"{type(base).__module__}.{type(base).__name__}"}
    with open(os.path.join(out, f"{accelerator.process_index}.json"), "w") as file:
        json.dump(found, file)
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "stateful")
