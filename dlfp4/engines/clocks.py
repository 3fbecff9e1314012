"""How long calls take where their operands lie, and their results as arrays to compute with there.

On CUDA devices calls are captured in a graph, by PyTorch or else CuPy, so that the time of a launch on the host is not
counted; without both, and on the host, a clock is read around each call.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dlfp4._core import _ON_CUDA, Tensor, asarray

if TYPE_CHECKING:
    from dlfp4._core import Device

Call = Callable[[], None]

ROUNDS = 9  # of all candidates in turn, so that a change of clock meets all of them
CALLS = 20  # at least, in a graph: events resolve half a microsecond


class Clock(Protocol):
    """What tuning asks of a device."""

    @property
    def stream(self) -> int | None:
        """The handle of that on which the calls are made."""

    def float64(self, x: Tensor) -> Any:
        """Values as an array of float64 where they lie; NumPy's, PyTorch's or CuPy's."""

    def measure(self, candidates: Sequence[Sequence[Call]]) -> list[float]:
        """Microseconds a call of each candidate, which is calls of equal work on different memory."""


class WallClock:
    """time.perf_counter around each call; `wait` ends those that do not end by themselves."""

    def __init__(self, wait: Call | None = None) -> None:
        self.stream: int | None = None
        self._wait = wait or (lambda: None)

    def float64(self, x: Tensor) -> Any:
        """By way of the host."""
        return np.asarray(asarray(x.to_device("cpu"), dtype="float64").to_numpy())

    def measure(self, candidates: Sequence[Sequence[Call]]) -> list[float]:
        """Each round takes the next of a candidate's calls."""
        times: list[list[float]] = [[] for _ in candidates]
        for turn in range(ROUNDS):
            for calls, taken in zip(candidates, times, strict=True):
                self._wait()
                start = time.perf_counter()
                calls[turn % len(calls)]()
                self._wait()
                taken.append((time.perf_counter() - start) * 1e6)
        return [statistics.median(taken) for taken in times]


class GraphClock:
    """Replays of graphs between two events: what PyTorch and CuPy do alike."""

    def capture(self, calls: Sequence[Call]) -> Any:
        """A graph of the calls, as something to call."""
        raise NotImplementedError

    def replay(self, graph: Any) -> float:
        """Milliseconds of one replay."""
        raise NotImplementedError

    def measure(self, candidates: Sequence[Sequence[Call]]) -> list[float]:
        """Each graph walks over all memory of its candidate, which was read long before when its turn comes again."""
        repeats = [-(-CALLS // len(calls)) for calls in candidates]
        graphs = [self.capture(list(calls) * count) for calls, count in zip(candidates, repeats, strict=True)]
        for graph in graphs:
            self.replay(graph)
        times: list[list[float]] = [[] for _ in candidates]
        for _ in range(ROUNDS):
            for graph, taken in zip(graphs, times, strict=True):
                taken.append(self.replay(graph))
        counts = [len(calls) * count for calls, count in zip(candidates, repeats, strict=True)]
        return [statistics.median(taken) * 1e3 / count for taken, count in zip(times, counts, strict=True)]


class TorchClock(GraphClock):
    """On a stream of PyTorch's."""

    def __init__(self, stream: Any) -> None:
        self.stream: int = stream.cuda_stream
        self._stream = stream

    def float64(self, x: Tensor) -> Any:
        """On the device."""
        return x.to_torch().double()

    def capture(self, calls: Sequence[Call]) -> Any:
        """Captured memory comes from a pool of the graph's own."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            for call in calls:
                call()
        return graph

    def replay(self, graph: Any) -> float:
        """By events of the stream."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self._stream)
        graph.replay()
        end.record(self._stream)
        end.synchronize()
        return float(start.elapsed_time(end))


class CupyClock(GraphClock):
    """On a stream of CuPy's, which operations take by its number."""

    def __init__(self, stream: Any) -> None:
        self.stream: int = stream.ptr
        self._stream = stream

    def float64(self, x: Tensor) -> Any:
        """By way of float32: CuPy has no bfloat16."""
        return asarray(x, dtype="float32").to_cupy().astype(np.float64)

    def capture(self, calls: Sequence[Call]) -> Any:
        """The calls have memory for their results, so nothing is allocated."""
        import cupy

        cupy.cuda.Device().synchronize()  # what made the operands is not part of the graph
        self._stream.begin_capture()
        try:
            for call in calls:
                call()
        finally:
            graph = self._stream.end_capture()
        return graph

    def replay(self, graph: Any) -> float:
        """By events of the stream."""
        import cupy

        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self._stream)
        graph.launch(self._stream)
        end.record(self._stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end))


@contextlib.contextmanager
def clock_at(device: Device, out: Tensor) -> Iterator[Clock]:
    """A clock for calls that write `out`, begun when the device has nothing else to do."""
    if device.type not in _ON_CUDA:
        with np.errstate(all="ignore"):  # NaN and infinity are compared, too
            yield WallClock()
    elif has_torch():
        import torch

        with torch.cuda.device(device.index):
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                yield TorchClock(stream)
            torch.cuda.synchronize()
    elif importlib.util.find_spec("cupy"):
        import cupy

        with cupy.cuda.Device(device.index) as here:
            here.synchronize()
            with cupy.cuda.Stream(non_blocking=True) as stream:
                yield CupyClock(stream)
            here.synchronize()
    else:
        with np.errstate(all="ignore"):
            yield WallClock(lambda: wait_for(out))


def has_torch() -> bool:
    """Whether there is a PyTorch that can use CUDA devices."""
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return bool(torch.cuda.is_available())


def wait_for(x: Tensor) -> None:
    """Until what writes a tensor is done: copies to the host wait for it."""
    x.view("uint8").reshape(-1)[:1].to_device("cpu")
