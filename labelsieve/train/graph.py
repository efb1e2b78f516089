"""GraphRecorder: run steps that only change tensors in place, first eagerly, then as CUDA graphs."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch

from labelsieve.errors import first_line

EAGER_CALLS = 3  # the first calls allocate memory, compile and choose algorithms, which cannot be captured
CAPTURE_LOCK = threading.Lock()  # a capture first waits for the whole device, also for other runs of the process
THREAD = threading.local()  # one stream per thread: torch reuses its 32 streams, so two runs could share one


class GraphRecorder:
    """Runs steps by key and replays them as CUDA graphs after a few eager calls.

    A step that cannot be captured, for example because it reads from the device, stays eager; `reason` is the cause.
    All random numbers must come from `random`. `clean_up` discards what a failed capture left uncomputed.
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
        self.clean_up = clean_up
        self.reason = None if device.type == "cuda" else f"CUDA graphs need a GPU, the device is {device.type}"
        if not enabled:
            self.reason = "requested"
        self._calls: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle() if self.reason is None else None

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Run a step; calls with equal keys must do the same work on the same tensors."""
        if key in self._graphs:
            self._graphs[key].replay()
            return
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        if self.reason is None and calls > EAGER_CALLS:
            graph = self._capture(step)
            if graph is not None:
                self._graphs[key] = graph
                graph.replay()
                return
        step()

    def _capture(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Return the step as a graph that has not run yet, or None after setting `reason`."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.random)
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        states = [(generator, generator.get_state()) for generator in (self.random, default)]
        stream = torch.cuda.current_stream(self.device)
        try:
            with CAPTURE_LOCK, torch.cuda.graph(graph, self._memory, stream, capture_error_mode="thread_local"):
                step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.reason = first_line(error)
            for generator, state in states:  # a failed capture leaves the generators unusable
                fresh = torch.Generator(self.device)
                fresh.set_state(state)
                generator.graphsafe_set_state(fresh)
            self.clean_up()
            return None
        return graph


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Work on a CUDA stream of this thread, after all work queued before; do nothing on a CPU."""
    if device.type != "cuda":
        yield
        return
    if not hasattr(THREAD, "stream"):
        THREAD.stream = torch.cuda.Stream(device)
    outside, inside = torch.cuda.current_stream(device), THREAD.stream
    inside.wait_stream(outside)
    with torch.cuda.stream(inside):
        yield
    outside.wait_stream(inside)
