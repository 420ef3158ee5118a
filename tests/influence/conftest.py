"""One thread: tiny tensors gain nothing from more, and the machine is shared."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def own_random_state():
    with torch.random.fork_rng():
        yield
