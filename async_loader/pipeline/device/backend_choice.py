"""The backend of a device that the user names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from async_loader.errors import ConfigError
from async_loader.pipeline.device.backend import DeviceBackend
from async_loader.pipeline.device.cuda_backend import CudaBackend
from async_loader.pipeline.device.torch_backend import TorchBackend

if TYPE_CHECKING:
    import torch


def backend_for(device: Any) -> DeviceBackend:
    """The backend of a device.

    Parameters
    ----------
    device : str | torch.device | DeviceBackend
        An accelerator that torch has ("cuda", "cuda:1", "xpu"); "fake" or a backend of your own for
        tests.

    Raises
    ------
    ConfigError
        When torch does not know the device, or this machine does not have it.
    """
    if isinstance(device, DeviceBackend):
        return device
    if str(device) == "fake":
        from async_loader.testing.fake_device import FakeBackend

        return FakeBackend()
    found = _find(device)
    return CudaBackend(found) if found.type == "cuda" else TorchBackend(found)


def _find(device: str | torch.device) -> torch.device:
    import torch

    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device {device!r} is nothing that torch knows: use 'cpu', 'cuda', 'cuda:0' ..."
        ) from error
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if present is None or present.type != wanted.type:
        has = "no accelerator" if present is None else repr(present.type)
        raise ConfigError(
            f"device {str(wanted)!r} is not available, torch has {has} here: use device='cpu'"
        )
    count = torch.accelerator.device_count()
    if wanted.index is not None and wanted.index >= count:
        raise ConfigError(
            f"device {str(wanted)!r} is not available, there are {count}: use an index below "
            f"{count}"
        )
    return wanted
