"""The codec of fields that a table keeps compressed: LZ4 blocks, by the extra ``codec``.

# NOTE [why lz4]
A frame is compressed once and decompressed for each draw, 5 frames for a transition with a stack of
4. On frames of Pong zstd makes two thirds of the bytes of lz4, and takes four times as long to read
them; blosc2 compresses no better than what it is built on, since bytes of a grey image have nothing
to shuffle. The difference to the frame before would halve the bytes, but then a draw decompresses
every frame since the last whole one. cramjam writes into memory that exists, so that a frame is
decompressed where a batch has it. Numbers: ``python -m benchmarks.replay.codecs``.
"""

from __future__ import annotations

import ctypes
from typing import Any

from async_loader.errors import Broken, MissingExtra
from async_loader.replay.array_types import Ids


class Lz4:
    """Compresses and decompresses memory at an address. Any thread.

    Raises
    ------
    MissingExtra
        Without cramjam.
    """

    def __init__(self) -> None:
        try:
            import cramjam
        except ImportError as error:
            raise MissingExtra(
                "a field with codec='lz4' needs cramjam: install async_loader[codec]"
            ) from error
        self._lz4: Any = cramjam.lz4
        self._failed: type[Exception] = cramjam.DecompressionError
        self._types: dict[int, Any] = {}

    @staticmethod
    def most(nbytes: int) -> int:
        """Return how many bytes a compressed value takes at most (LZ4_compressBound)."""
        return nbytes + nbytes // 255 + 16

    def compress(self, address: int, nbytes: int, target: memoryview) -> int:
        """Compress a value into ``target``, of `most` bytes. Return its bytes there, ``nbytes`` if
        it does not compress: then it lies there as it is.
        """
        source = self._kind(nbytes).from_address(address)
        count = int(self._lz4.compress_block_into(source, target, store_size=False))
        if count < nbytes:
            return count
        target[:nbytes] = memoryview(source).cast("B")
        return nbytes

    def decompress(
        self, source: memoryview, starts: Ids, counts: Ids, addresses: Ids, nbytes: int
    ) -> None:
        """Decompress values of ``nbytes``, each from its start in ``source`` to its address.

        Raises
        ------
        Broken
            If the bytes are not of a value of that size.
        """
        decompress, at = self._lz4.decompress_block_into, self._kind(nbytes).from_address
        listed = zip(starts.tolist(), counts.tolist(), addresses.tolist(), strict=True)
        for start, count, address in listed:
            value, target = source[start : start + count], at(address)
            if count == nbytes:
                memoryview(target).cast("B")[:] = value
                continue
            try:
                there = decompress(value, target, output_len=nbytes)
            except self._failed as error:
                raise Broken(f"{count} compressed bytes cannot be read: {error}") from None
            if there != nbytes:
                raise Broken(f"{count} compressed bytes hold {there} bytes, not {nbytes}")

    def _kind(self, nbytes: int) -> Any:
        """Return the type of a buffer of that size; making one takes longer than a frame."""
        kind = self._types.get(nbytes)
        if kind is None:
            kind = self._types[nbytes] = ctypes.c_ubyte * nbytes
        return kind

    def __reduce__(self) -> tuple[Any, ...]:
        return Lz4, ()
