"""The benchmark of the influence step: what it times is the same step every time."""

import torch
from benchmarks.influence import Setting, Workbench


def test_steps_do_not_move_the_model_so_that_none_runs_away():
    bench = Workbench(Setting(width=2, batch=8, goal=4))
    before = {name: p.detach().clone() for name, p in bench.model.named_parameters()}
    for step in (bench.er, bench.released, bench.ours, lambda: bench.apart(bench.ours)):
        step()
        grads = [p.grad for p in bench.model.parameters()]
        assert all(grad is not None and bool(grad.abs().sum() > 0) for grad in grads)
    for name, parameter in bench.model.named_parameters():
        assert torch.equal(parameter, before[name]), name
