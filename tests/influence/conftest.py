"""What several tests of influence begin with."""

import pytest
import torch.distributed as dist

from metasp.influence.parallel import Ranks


@pytest.fixture
def ranks():
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Ranks()
    dist.destroy_process_group()
