"""What must hold for every method there is."""

import random
from collections import defaultdict
from contextlib import nullcontext
from importlib import import_module

import pytest
import torch

from metasp.backbones import BACKBONES
from metasp.errors import UserError
from metasp.events import TaskStarted
from metasp.experiment import Interrupted, prepare
from metasp.memory import SELECTIONS
from metasp.methods import METHODS
from metasp.methods.base import Method
from tests.helpers import assert_same_run
from tests.methods.factories import (
    TELLING,
    blobs,
    changed,
    digits,
    finish,
    on,
    small,
    train,
    weights,
)

every = pytest.mark.parametrize("name", METHODS)


def run(spec, folder, stops=()):
    """A stored run, stopped and begun again by a new experiment at each of these places, which
    count steps and ends of tasks."""
    done = 0
    for place in [*stops, None]:
        left = [None if place is None else place - done]
        done = place

        def stop(left=left):
            left[0] = None if left[0] is None else left[0] - 1
            return left[0] == 0

        experiment = prepare(spec, folder, stop=stop, checkpoint_seconds=1e9)
        with nullcontext() if place is None else pytest.raises(Interrupted):
            for _ in experiment.events():
                pass
    return experiment


@pytest.mark.slow
@every
def test_a_run_stopped_in_every_phase_of_every_task_ends_in_the_same_bits(name, tmp_path):
    schedule = {"rehearse_last": 2} if METHODS[name].kind.schedules() else {}
    observed = {"observe": 1} if name == "er" else {}
    spec = small(name, limit_per_class=6, batch_size=4, momentum=0.9, lr=0.02, epochs=3, trusted=1,
                 classes_per_task=(4, 3, 3), label_noise=0.1, **schedule, **observed)  # fmt: skip
    spec = spec.with_(settings=TELLING.get(name, {}))
    whole = run(spec, tmp_path / "whole").directory
    places = defaultdict(list)
    for event in whole.events():
        if event["event"] in ("StepTaken", "TaskFinished"):
            number = sum(map(len, places.values())) + 1
            places[event["task"], event.get("kind", "end")].append(number)
    where = random.Random(name)
    stops = sorted(where.choice(numbers) for numbers in places.values())
    pieces = run(spec, tmp_path / "pieces", stops[:-1])  # after the last there is nothing to do
    assert_same_run(pieces.directory, whole)


@every
def test_a_restored_trainer_stands_where_the_first_stood(name):
    """Counters included, in a later task."""
    settings = TELLING.get(name, {})
    one, two = (digits(name, limit_per_class=4, tasks=2, settings=settings) for _ in range(2))
    events = one.run()
    while one.position.task == 0 or one.position.step < 2:
        next(events)
    tensors, position = one.state()
    kept = {key: tensor.clone() for key, tensor in tensors.items()}
    two.restore(kept, position)
    assert changed(kept, two.state()[0]) == []
    assert two.position == one.position


@every
def test_the_same_spec_gives_the_same_bits_and_another_seed_does_not(name):
    torch.rand(3)  # nothing may depend on the global random state
    one, two, other = (
        digits(name, limit_per_class=4, seed=s, epochs=1, tasks=2) for s in (1, 1, 2)
    )
    before = torch.get_rng_state()
    assert finish(one) == finish(two)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(weights(one), weights(two))
    finish(other)
    assert not torch.equal(weights(one), weights(other))


@pytest.mark.slow
@every
@pytest.mark.parametrize("backbone", BACKBONES)
def test_any_backbone_and_one_epoch(name, backbone):
    trainer = digits(name, backbone=backbone, limit_per_class=4, epochs=1, lr=0.01, tasks=2)
    finish(trainer)
    assert weights(trainer).isfinite().all()


@every
def test_a_memory_smaller_than_a_batch_and_tasks_of_unequal_size(name):
    benchmark = blobs([30, 9, 2, 1, 17, 5])
    trainer = on(benchmark, name, memory=6, batch_size=8, memory_batch=8, lr=0.01)
    events = list(trainer.run())
    assert [event.examples for event in events if isinstance(event, TaskStarted)] == [39, 3, 22]
    memory = trainer.learner.memory
    if METHODS[name].selection is None:
        assert len(memory) == 0
    else:
        assert 0 < len(memory) <= 6
        assert (memory.tasks[memory.occupied] >= 0).all()
    assert weights(trainer).isfinite().all()


@pytest.mark.slow
@every
def test_rows_instead_of_images(name):
    trainer = on(blobs([8, 8, 8, 8], shape=(7,)), name, backbone="mlp", lr=0.01)
    finish(trainer)
    assert weights(trainer).isfinite().all()


@pytest.mark.slow
@every
def test_one_class_per_task_leaves_one_example_each_in_memory(name):
    """A lone example has no batch statistics, yet no method may fall over it."""
    benchmark = blobs([8, 8, 8, 8], shape=(1, 8, 8), tasks=4)
    trainer = on(benchmark, name, memory=4, batch_size=4, backbone="resnet18", lr=0.01, epochs=1)
    finish(trainer)
    assert weights(trainer).isfinite().all()


@pytest.mark.slow
@every
def test_plain_epochs_before_rehearsal(name):
    changes = {"epochs": 3, "rehearse_last": 1, "limit_per_class": 6, "lr": 0.01}
    if not METHODS[name].kind.schedules():
        with pytest.raises(UserError, match="does not follow rehearse_last"):
            digits(name, **changes)
        return
    kinds = [e.kind for e in digits(name, **changes).run() if type(e).__name__ == "StepTaken"]
    assert kinds.count("finetune") == 2 * kinds.count("rehearse") > 0


@pytest.mark.slow
@every
def test_memory_holds_raw_examples(name):
    if METHODS[name].selection is None or name == "gmed":
        pytest.skip("keeps no memory, or edits it on purpose")
    trainer = digits(name, limit_per_class=6, epochs=1)
    train(trainer, 4)
    memory, source = trainer.learner.memory, trainer.tasks[0].with_trusted_in_train().train
    rows = {int(i): source.take(torch.tensor([n])).inputs[0] for n, i in enumerate(source.ids)}
    for slot in torch.nonzero(memory.tasks == 0).flatten():
        assert torch.equal(memory.inputs[slot], rows[int(memory.ids[slot])])


@pytest.mark.slow
@every
def test_both_scenarios_are_scored_and_learning_happened(name, tmp_path):
    spec = small(name, limit_per_class=30, epochs=2, backbone="mlp", width=32, memory=60)
    spec = spec.with_(
        settings={**spec.settings, **({"memory_epochs": 20} if name == "gdumb" else {})}
    )
    result = run(spec, tmp_path).directory.result()
    assert result["task_il"]["A_inf"] > 0.6
    assert result["task_il"]["A_inf"] >= result["class_il"]["A_inf"]


@every
def test_what_a_method_says_of_itself(name):
    kind = type(digits(name).method)
    assert issubclass(kind, Method)
    assert kind.lr > 0
    assert kind.selection is None or kind.selection in SELECTIONS
    assert import_module(kind.__module__).__doc__


@pytest.mark.parametrize("name", ["agem", "gmed", "hal", "mir"])
def test_in_bf16_a_method_with_passes_of_its_own_goes_nearly_the_same_way(name):
    ways = {}
    for precision in ("fp32", "bf16"):
        trainer = digits(name, precision=precision, limit_per_class=6, epochs=1, lr=0.01)
        start = weights(trainer)
        train(trainer, 6)
        assert trainer.position.task == 2
        ways[precision] = weights(trainer) - start
    assert not torch.equal(ways["fp32"], ways["bf16"])
    assert torch.cosine_similarity(ways["fp32"], ways["bf16"], dim=0) > 0.9
