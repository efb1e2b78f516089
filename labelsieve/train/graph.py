"""Recorder: steps that only change tensors in place, run eagerly at first, then recorded as CUDA graphs."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch

EAGER_CALLS = 3  # real ones: they allocate, compile and choose algorithms, none of which can be recorded
RECORDING = threading.Lock()  # beside other runs of the process: a recording begins by waiting for the whole device

OWN = threading.local()  # a stream per thread: torch hands out 32 in turn, and two runs on one would meet


class Recorder:
    """Runs each step by its key. What is random in it must draw from `random`.

    A step that cannot be recorded, such as one that reads from the device, stays eager; `reason` says why.
    """

    def __init__(
        self,
        device: torch.device,
        random: torch.Generator,
        *,
        enabled: bool = True,
        clean_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.device = device
        self.random = random
        self.clean_up = clean_up  # after a recording that broke: what it left was never computed
        self.reason = None if device.type == "cuda" else f"graphs need a GPU, this is {device.type}"
        if not enabled:
            self.reason = "asked for"
        self._calls: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle() if self.reason is None else None

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Do the step; a key stands for the same work on the same tensors every time."""
        if key in self._graphs:
            self._graphs[key].replay()
            return
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        if self.reason is None and calls > EAGER_CALLS:
            graph = self._recorded(step)
            if graph is not None:
                self._graphs[key] = graph
                graph.replay()
                return
        step()

    def _recorded(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """The step as a graph, which has not run yet; None, with a reason, if that cannot be."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.random)
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        states = [(generator, generator.get_state()) for generator in (self.random, default)]
        stream = torch.cuda.current_stream(self.device)
        try:
            with RECORDING, torch.cuda.graph(graph, self._memory, stream, capture_error_mode="thread_local"):
                step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.reason = str(error).partition("\n")[0]
            for generator, state in states:  # a broken recording leaves them unusable
                whole = torch.Generator(self.device)
                whole.set_state(state)
                generator.graphsafe_set_state(whole)
            self.clean_up()
            return None
        return graph


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Work on a stream of one's own, after what was begun before; on a CPU, just work."""
    if device.type != "cuda":
        yield
        return
    if not hasattr(OWN, "stream"):
        OWN.stream = torch.cuda.Stream(device)
    outside, inside = torch.cuda.current_stream(device), OWN.stream
    inside.wait_stream(outside)
    with torch.cuda.stream(inside):
        yield
    outside.wait_stream(inside)
