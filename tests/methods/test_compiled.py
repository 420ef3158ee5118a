"""`compile` under other methods than metasp: the same run, up to rounding."""

import pytest

from metasp.events import StepTaken
from tests.helpers import outcome


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er", "gmed"])
def test_compiled_learns_what_plain_learns(tiny, method):
    pytest.importorskip("torch._inductor")
    losses, results = [], []
    for compiled in (False, True):
        experiment = tiny(str(compiled), method=method, tasks=2, backbone="mlp", width=16,
                          limit_per_class=20, compile=compiled)  # fmt: skip
        steps = [e.loss for e in experiment.events() if isinstance(e, StepTaken)]
        forward = experiment.trainer.learner.model._compiled_call_impl
        assert (forward is not None) == compiled
        losses.append(steps)
        results.append(outcome(experiment.directory)["class_il"]["matrix"])
    assert len(losses[0]) > 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    for plain, other in zip(*results):
        assert [x for x in other if x is not None] == pytest.approx(
            [x for x in plain if x is not None], abs=0.03
        )
