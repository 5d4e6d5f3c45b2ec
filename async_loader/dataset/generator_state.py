"""States of torch's generators, as JSON can hold them."""

from __future__ import annotations


def generator_state(generator: object) -> list[int] | None:
    """Of a torch generator, as JSON can hold it; ``None`` where there is no such generator."""
    return generator.get_state().tolist() if hasattr(generator, "get_state") else None


def set_generator(generator: object, state: list[int]) -> None:
    """The opposite of `generator_state`."""
    import torch

    if hasattr(generator, "set_state"):
        generator.set_state(torch.tensor(state, dtype=torch.uint8))


def global_state() -> list[int]:
    """Of torch's global generator."""
    import torch

    state: list[int] = torch.get_rng_state().tolist()
    return state
