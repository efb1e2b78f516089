"""A Ray cluster for the tests of this room."""

import shutil
import tempfile

import pytest

from labelsieve.sweep.ray import QUIET


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Temporary folder of the workers; Ray runs isolated and leaves nothing in the home folder."""
    place, own = tmp_path / "workers", tempfile.mkdtemp(dir="/tmp")  # sockets need a short name
    place.mkdir()
    ours = {"TMPDIR": str(place), "RAY_TMPDIR": own, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    for name, value in {**ours, **QUIET}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pytest.importorskip("ray")
    yield place
    shutil.rmtree(own, ignore_errors=True)


@pytest.fixture
def cluster(place):
    """Start a head that runs nothing, and two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        yield f"ray:{cluster.address}"
    finally:
        cluster.shutdown()
