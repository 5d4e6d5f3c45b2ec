"""CUDA: streams and events of torch.cuda, and page-locked slots. And which backend a device has.

torch is imported inside functions only.

# NOTE [registered memory and torch]
Slots are page-locked with cudaHostRegister, which torch's caching host allocator does not know: it
protects its own blocks from reuse until their copies are done, and not these. The caller that
copies from a slot holds its lease until the copy's event is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from async_loader.batch_layout import Region
from async_loader.errors import ConfigError
from async_loader.pipeline.device.backend import Bytes, DeviceBackend
from async_loader.pipeline.device.torch_backend import TorchBackend

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("async_loader")
_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every CUDA context of the process
_ALREADY_REGISTERED = 712  # cudaErrorHostMemoryAlreadyRegistered
_LARGEST_REGISTRATION = 16 << 30


class CudaBackend(TorchBackend):
    """CUDA (and ROCm, which torch names alike): page-locked slots, and waits that sleep instead of
    spinning.

    Streams and events are those of torch.cuda throughout: the two families must not be mixed within
    one call, and ``torch.Event`` ignores ``blocking``, without which `synchronize` burns the core
    on which the learner may run.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._registered: dict[int, list[int]] = {}
        self._waits: Any = None
        self._woken: Any = None

    def _current(self, device: torch.device) -> torch.device:
        import torch

        # Do not start CUDA here: the workers may be forked after this.
        cuda = _cuda()
        return torch.device(device.type, cuda.current_device() if cuda.is_initialized() else 0)

    def open(self) -> None:
        cuda = _cuda()
        cuda.set_device(self.device)
        self._side = cuda.Stream(device=self.device)
        self._waits = cuda.Stream(device=self.device)
        self._woken = cuda.Event(blocking=True)
        cuda.set_stream(self._side)

    def record(self) -> Any:
        event = _cuda().Event()
        event.record(self._side)
        return event

    def synchronize(self, event: Any) -> None:
        """Sleep, by an event that was made for it: the driver keeps a descriptor for each."""
        if not event.query():
            self._waits.wait_event(event)
            self._woken.record(self._waits)
            self._woken.synchronize()

    @contextmanager
    def aside(self) -> Iterator[None]:
        import torch

        with torch.inference_mode(False), _cuda().stream(self._side):
            yield

    def upload_here(
        self, root: Bytes, nbytes: int, regions: Sequence[Region]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        import torch

        inferring = torch.is_inference_mode_enabled()
        with torch.inference_mode(False) if inferring else nullcontext():
            block = self.upload(root, nbytes)
            return block, self.arrays(block, regions)

    def wait(self, event: Any) -> None:
        event.wait(self._consumers())

    def _consumers(self) -> Any:
        return _cuda().current_stream(self.device)

    # -- page-locking ------------------------------------------------------------------------------

    def register(self, memory: Bytes, unit: int) -> bool:
        done: list[int] = []
        try:
            for start, size in pieces(memory.nbytes, unit):
                address = memory.ctypes.data + start
                code = int(self._runtime().cudaHostRegister(address, size, _PORTABLE))
                if code not in (0, _ALREADY_REGISTERED):
                    raise OSError(f"cudaHostRegister of {size} bytes failed with CUDA error {code}")
                if code == 0:
                    done.append(address)
                else:
                    self._drain()  # page-locked by other code, which also undoes it
        except Exception as error:  # whatever it is, the copies work without
            self._release(done)
            self._drain()
            self._warn(str(error))
            return False
        self._registered[memory.ctypes.data] = done
        return True

    def unregister(self, memory: Bytes) -> None:
        self._release(self._registered.pop(memory.ctypes.data, []))

    def _release(self, addresses: Sequence[int]) -> None:
        codes = [int(self._runtime().cudaHostUnregister(address)) for address in addresses]
        if any(codes):
            self._drain()
            _log.warning(
                "page-locked memory could not be released: CUDA errors %s", sorted(set(codes) - {0})
            )

    def _drain(self) -> None:
        """Take away the error that a failed runtime call leaves behind in this thread.

        The next launch would report it as its own; so this launches something, and lets that report
        it.
        """
        import torch

        try:
            torch.empty(1, device=self.device).fill_(0)
        except RuntimeError:
            _log.debug("a pending CUDA error was drained", exc_info=True)

    def _runtime(self) -> Any:
        return _cuda().cudart()


def _cuda() -> Any:
    import torch

    return torch.cuda


def pieces(nbytes: int, unit: int, largest: int = _LARGEST_REGISTRATION) -> list[tuple[int, int]]:
    """Start and size of registrations that cover ``nbytes``.

    Huge single registrations fail, as do empty ones, and a copy must not cross from one into the
    next: so they are cut between units.
    """
    size = max(1, largest // max(unit, 1)) * max(unit, 1)
    return [(start, min(size, nbytes - start)) for start in range(0, nbytes, size)]


BY_NAME: dict[object, Callable[[], DeviceBackend]] = {}
"""Makers of other devices than torch's, for tests."""


def backend_for(device: Any) -> DeviceBackend:
    """The backend of a device.

    Parameters
    ----------
    device : str | torch.device | DeviceBackend
        An accelerator that torch has ("cuda", "cuda:1", "xpu"), or a backend of your own.

    Raises
    ------
    ConfigError
        When torch does not know the device, or this machine does not have it.
    """
    if isinstance(device, DeviceBackend):
        return device
    if device in BY_NAME:
        return BY_NAME[device]()
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
