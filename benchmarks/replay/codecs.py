"""Codecs on frames of Pong: bytes, and CPU time to compress and to read one in random order.

Frames are those of examples/dqn_atari.py, 84 x 84 grey, half of a random policy and half of one
that follows the ball. "Against the frame before": what would be stored is the difference (xor), so
that reading one frame takes all since the last that was stored whole; that is not in the figure.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import Contender, Figures, Metric, Row, Target

FRAMES = 1_000  # of each policy
_SIDE = 84
_NBYTES = _SIDE * _SIDE

Frame = np.ndarray
Codec = tuple[Callable[[Frame], Any], Callable[[Any, Frame], None]]
"""To bytes, and back into memory that exists."""


@functools.cache
def pong() -> Frame:
    """Play. Return uint8 [frames, 84, 84]."""
    return np.concatenate([_play(_random), _play(_follow)])


def _play(policy: Callable[[Any, Frame], int]) -> Frame:
    import ale_py
    import cv2
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing

    gymnasium.register_envs(ale_py)
    cv2.setNumThreads(1)
    env = AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1), frame_skip=4)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    frames = []
    for _ in range(FRAMES):
        frames.append(obs.copy())
        obs, _, terminated, truncated, _ = env.step(policy(env, obs))
        if terminated or truncated:
            obs, _ = env.reset()
    return np.stack(frames)


def _random(env: Any, obs: Frame) -> int:
    return int(env.action_space.sample())


def _follow(env: Any, obs: Frame) -> int:
    """Move the paddle to the height of the ball."""
    ball = np.argwhere(obs[14:78, 10:74] > 180)
    paddle = np.argwhere(obs[14:78, 74:78] > 120)
    if not len(ball) or not len(paddle):
        return 0
    apart = ball[:, 0].mean() - paddle[:, 0].mean()
    return 3 if apart > 1 else 2 if apart < -1 else 0


def cramjam(kind: str) -> Codec:
    library: Any = importlib.import_module("cramjam")
    if kind == "lz4":
        return (
            lambda frame: bytes(library.lz4.compress_block(frame, store_size=False)),
            lambda data, out: library.lz4.decompress_block_into(data, out, output_len=_NBYTES),
        )
    return (
        lambda frame: bytes(library.zstd.compress(frame, level=1)),
        lambda data, out: library.zstd.decompress_into(data, out),
    )


def lz4(_: str) -> Codec:
    block: Any = importlib.import_module("lz4.block")

    def read(data: bytes, out: Frame) -> None:
        out[:] = np.frombuffer(block.decompress(data, uncompressed_size=_NBYTES), np.uint8)

    return lambda frame: block.compress(frame, store_size=False), read


def zstandard(_: str) -> Codec:
    library: Any = importlib.import_module("zstandard")
    into, out_of = library.ZstdCompressor(level=1), library.ZstdDecompressor()

    def read(data: bytes, out: Frame) -> None:
        out[:] = np.frombuffer(out_of.decompress(data, max_output_size=_NBYTES), np.uint8)

    return into.compress, read


def blosc2(kind: str) -> Codec:
    library: Any = importlib.import_module("blosc2")
    library.set_nthreads(1)
    settings = {
        "codec": library.Codec.LZ4,
        "filters": [getattr(library.Filter, kind)],
        "typesize": 1,
        "nthreads": 1,
    }
    return (
        lambda frame: library.compress2(frame, **settings),
        lambda data, out: library.decompress2(data, dst=out, nthreads=1),
    )


def measured(seconds: float, make: Callable[[str], Codec], kind: str, delta: bool) -> Figures:
    """Time passes over all frames; the best of each counts."""
    frames = pong().reshape(-1, _NBYTES).copy()
    if delta:
        frames[1:] ^= frames[:-1].copy()
    write, read = make(kind)
    out, rng = np.empty(_NBYTES, np.uint8), np.random.default_rng(0)
    encode, decode, end = [], [], time.perf_counter() + seconds
    while True:
        begin = time.thread_time()
        stored = [write(frame) for frame in frames]
        between = time.thread_time()
        encode.append(between - begin)
        order = rng.permutation(len(stored)).tolist()
        between = time.thread_time()
        for i in order:
            read(stored[i], out)
        decode.append(time.thread_time() - between)
        if not np.array_equal(out, frames[order[-1]]):
            raise AssertionError("a frame came back as another")
        if time.perf_counter() > end:
            break
    nbytes, each = sum(map(len, stored)) / len(stored), 1e6 / len(stored)
    return {
        "ratio": _NBYTES / nbytes,
        "encode": min(encode) * each,
        "decode": min(decode) * each,
    }


OURS, ZSTD = "lz4, by cramjam: what codec='lz4' is", "zstd -1, by cramjam"

ROW = Row(
    "codecs",
    f"{2 * FRAMES:,} frames of Pong, 84 x 84, each by itself and in random order",
    (
        Metric("decode", "CPU us to read a frame"),
        Metric("encode", "CPU us to compress it"),
        Metric("ratio", "times smaller", "higher"),
    ),
    (
        Contender(OURS, "codecs", partial(measured, make=cramjam, kind="lz4", delta=False)),
        Contender(ZSTD, "codecs", partial(measured, make=cramjam, kind="zstd", delta=False)),
        *(
            Contender(name, "codecs", partial(measured, make=make, kind=kind, delta=delta))
            for name, make, kind, delta in (
                ("lz4, by python-lz4", lz4, "", False),
                ("zstd -1, by zstandard", zstandard, "", False),
                ("blosc2: lz4", blosc2, "NOFILTER", False),
                ("blosc2: lz4, shuffle", blosc2, "SHUFFLE", False),
                ("blosc2: lz4, bitshuffle", blosc2, "BITSHUFFLE", False),
                ("lz4, against the frame before", lz4, "", True),
                ("zstd -1, against the frame before", zstandard, "", True),
            )
        ),
    ),
    (Target(">= 2x as fast to read as zstd", "decode", 2, OURS, (ZSTD,)),),
)
