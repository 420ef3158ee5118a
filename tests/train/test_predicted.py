"""The class the model gives each measured example: right, and without a trace on training."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from metasp.train import build_trainer
from metasp.train import evaluate as engine
from metasp.train.evaluate import value_columns
from metasp.types import Examples
from tests.helpers import final_weights, finish, outcome
from tests.methods.factories import digits


def test_it_is_what_the_stored_model_says(tiny):
    experiment = tiny(method="metasp-rehsel", epochs=2)
    run = finish(experiment)
    table = pq.read_table(run.path / "influence.parquet").to_pydict()
    trainer = build_trainer(experiment.spec, experiment.benchmark)
    trainer.restore({k: torch.from_numpy(v) for k, v in run.checkpoint().arrays.items()}, {})
    source = experiment.benchmark.source
    model = trainer.learner.model.eval()
    row = {int(i): at for at, i in enumerate(source.ids)}
    last = [at for at, task in enumerate(table["task"]) if task == 4]
    pixels = source.inputs[[row[table["id"][at]] for at in last]].float() / 255
    with torch.no_grad():
        logits = model((pixels - source.mean[0]) / source.std[0])
    # All ten classes are seen by the last task, so the largest logit decides.
    ours = np.array([table["predicted"][at] for at in last])
    assert (ours == logits.argmax(1).numpy()).mean() > 0.99
    early = {table["predicted"][at] for at, task in enumerate(table["task"]) if task == 1}
    assert early <= {0, 1, 2, 3}, "a class not seen yet is never given"


def test_looking_leaves_no_trace(tiny, monkeypatch):
    """With BatchNorm, dropping the look changes not one bit of the run."""
    changes = {"method": "metasp", "backbone": "resnet18", "width": 4, "limit_per_class": 12}
    looked = finish(tiny("looked", **changes))
    monkeypatch.setattr(engine, "predicted_labels", lambda learner, seen, ids: [0] * len(ids))
    blind = finish(tiny("blind", **changes))
    assert final_weights(looked) == final_weights(blind)
    assert outcome(looked) == outcome(blind)
    predicted = pq.read_table(looked.path / "influence.parquet")["predicted"].to_pylist()
    assert any(predicted), "the look took place"


def test_a_run_without_influences_does_not_look(tiny, monkeypatch):
    monkeypatch.setattr(engine, "predicted_labels", None)
    run = finish(tiny(method="er"))
    assert run.influence() is None
    assert sorted(run.memory_tables()) == [0, 1, 2, 3, 4]


def test_a_task_s_table_says_of_each_example_where_it_came_from_and_whether_it_stays(tiny):
    run = finish(tiny(method="metasp-rehsel"))
    found, memory, tasks = run.influence(), run.memory_tables(), tiny().benchmark.tasks
    own = [set(task.train.ids.tolist()) for task in tasks]
    label = {int(i): int(y) for t in tasks for i, y in zip(t.train.ids, t.train.labels)}
    sources = set()
    for task, name, source, kept, given in zip(
        *(found[column] for column in ("task", "id", "source", "kept", "label"))
    ):
        assert source == ("new" if name in own[task] else "memory")
        assert kept == (name in memory[task]["id"])
        assert given == label[name]
        sources.add((task > 0, source))
    assert {(True, "new"), (True, "memory")} <= sources


@pytest.mark.parametrize(("outputs", "known"), [(2, False), (3, False), (4, True)])
def test_a_head_without_a_place_for_every_class_predicts_nothing(outputs, known):
    """Its rows are no scores of the classes 0 to 3."""
    trainer = digits("metasp", limit_per_class=3)
    learner, seen = trainer.learner, trainer.tasks[:2]
    learner.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs))
    ids = [*seen[0].train.ids.tolist(), *seen[1].train.ids[:1].tolist(), 10**6]
    found = engine.predicted_labels(learner, seen, ids)
    assert [label is not None for label in found] == [known] * (len(ids) - 1) + [False]


def test_of_numbers_it_tells_those_given_and_what_the_model_says_of_the_examples_met():
    learner = digits("er").learner
    learner.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 1))
    inputs = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    train = Examples.of(inputs, torch.tensor([0.5, 1.5, torch.nan, 3.5]))
    met = torch.tensor([True, False, True, True])
    found = value_columns(learner, train.only(met.nonzero()[:, 0]))
    assert found["target"] == [0.5, None, 3.5]
    said = learner.model(learner.transform(inputs))[met].flatten().tolist()
    assert found["said"] == pytest.approx(said)
