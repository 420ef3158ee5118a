"""A real Ray cluster, of several nodes on this machine."""

import os
from pathlib import Path

import pytest

from metasp.store.checkpoints import numbers_in
from tests.helpers import ROOT

STORE = 80 * 2**20  # bytes of Ray's object store on each node: its least


def newest_checkpoint(run: Path) -> int:
    """The number of a run's last checkpoint; 0 where there is none."""
    return max(numbers_in(run / "checkpoint"), default=0)


@pytest.fixture
def cluster_of(monkeypatch):
    """Makes a cluster of a head and other nodes with so many CPUs each."""
    import ray
    from ray.cluster_utils import Cluster

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # a test of our own cluster may have set them
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    made = []

    def make(head: int, *others: int) -> Cluster:
        about = {
            "num_cpus": head,
            "include_dashboard": False,
            "object_store_memory": STORE,
            "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 4},
        }
        made.append(Cluster(initialize_head=True, head_node_args=about))
        for count in others:
            made[-1].add_node(num_cpus=count, object_store_memory=STORE)
        made[-1].wait_for_nodes()
        return made[-1]

    yield make
    ray.shutdown()
    for each in made:
        each.shutdown()


@pytest.fixture
def cluster(cluster_of):
    return cluster_of(1, 1)
