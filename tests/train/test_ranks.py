"""One run on several real processes: what one process comes to, every rank alike."""

import pytest
import torch

from metasp.methods import METHODS
from tests.influence.test_parallel import torchrun
from tests.train.rank_worker import SINGLE, ended

WITHOUT_BATCHNORM = ("er/mlp", "metasp/mlp", "metasp-rehsel/mlp", "mir/mlp", "derpp/mlp")
WITH_BATCHNORM = ("er/convnet", "er/resnet18", "metasp/convnet", "metasp-rehsel/convnet/2")
EXACT = {"id", "ids", "tasks", "labels", "counts", "order"}  # must not differ at all


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "cases"),
    [
        (2, (*WITHOUT_BATCHNORM, *WITH_BATCHNORM)),
        (4, (*WITHOUT_BATCHNORM, *WITH_BATCHNORM)),
        (2, tuple(f"{method}/convnet" for method in METHODS)),
    ],
    ids=["2", "4", "every method"],
)
def test_a_run_on_many_processes_comes_to_what_one_comes_to(tmp_path, count, cases):
    done = torchrun(count, "-m", "tests.train.rank_worker", str(tmp_path), *cases, timeout=600)
    assert done.returncode == 0, done.stderr
    for case in cases:
        files = [tmp_path / f"{case.replace('/', '-')}.{rank}.pt" for rank in range(count)]
        found = [torch.load(file, weights_only=True) for file in files]
        whole = ended(case, None)
        assert whole.keys() == found[0].keys()
        for name, value in whole.items():
            for other in found[1:]:
                assert found[0][name].equal(other[name]) or value.isnan().any(), f"{case} {name}"
            near = 1e-3 if case.startswith(SINGLE) else 1e-8
            near = 0 if name.split("/")[-1] in EXACT else near
            torch.testing.assert_close(
                found[0][name], value, rtol=near, atol=near, equal_nan=True,
                msg=lambda words, case=case, name=name: f"{case} {name}: {words}",
            )  # fmt: skip
