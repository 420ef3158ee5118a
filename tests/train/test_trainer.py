import itertools

import pytest
import torch

from metasp.errors import Diverged, UserError
from metasp.events import Evaluated, StepTaken, TaskFinished
from metasp.experiment import Interrupted
from metasp.methods.base import batch_bounds
from metasp.store.manifest import read_manifest
from metasp.train import build_trainer
from metasp.train.evaluate import best_of, evaluate
from metasp.train.optimizers import LearningRate
from tests.helpers import finish, outcome


def test_rehearse_last_is_plain_before(tiny):
    """With rehearsal put off, the first epochs are those of fine-tuning to the bit."""
    late = list(tiny(method="er", epochs=3, rehearse_last=1).events())
    plain = list(tiny(method="finetune", epochs=3).events())
    steps = [[e for e in run if isinstance(e, StepTaken) and e.task == 0] for run in (late, plain)]
    kinds = [step.kind for step in steps[0]]
    assert kinds == ["finetune"] * (2 * len(kinds) // 3) + ["rehearse"] * (len(kinds) // 3)
    losses = [[step.loss for step in run][: 2 * len(kinds) // 3] for run in steps]
    assert losses[0] == losses[1]


def test_tested_before_and_after_each_task(tiny):
    tests = [e for e in tiny().events() if isinstance(e, Evaluated)]
    assert [(e.task, e.before, e.on) for e in tests] == [
        entry for t in range(5) for entry in ((t, True, (t,)), (t, False, tuple(range(t + 1))))
    ]


def test_a_model_is_scored_over_the_classes_seen_so_far_and_none_to_come(tiny):
    asked = []

    def score(learner, task, seen):
        asked.append((task.index, list(seen)))
        return 0.0, 0.0

    experiment = tiny(method="finetune", classes_per_task=(4, 3, 3), limit_per_class=4)
    trainer = build_trainer(experiment.spec, experiment.benchmark)
    trainer.score = score
    for _ in trainer.run():
        pass
    first, two, all_of_them = list(range(4)), list(range(7)), list(range(10))
    assert asked == [
        (0, first), (0, first),
        (1, two), (0, two), (1, two),
        (2, all_of_them), (0, all_of_them), (1, all_of_them), (2, all_of_them),
    ]  # fmt: skip


def test_scores_of_one_model_both_ways(tiny):
    """Against predictions made one example at a time from the raw logits."""
    experiment = tiny(epochs=2)
    finish(experiment)
    trainer = experiment.trainer
    model, task = trainer.learner.model.eval(), trainer.tasks[1]
    right = [0, 0]
    for row in range(len(task.test)):
        raw = task.test.take(torch.tensor([row]))
        logits = model(trainer.learner.transform(raw.inputs))[0].tolist()
        for scenario, classes in enumerate((range(6), task.classes)):
            best = max(classes, key=lambda c: logits[c])
            right[scenario] += best == int(raw.labels[0])
    class_il, task_il = evaluate(trainer.learner, task, range(6))
    assert class_il == pytest.approx(right[0] / len(task.test))
    assert task_il == pytest.approx(right[1] / len(task.test))


def test_best_of_looks_only_at_the_given_classes():
    logits = torch.tensor([[9.0, 1.0, 2.0, 3.0]])
    assert best_of(logits, (1, 2)).tolist() == [2]


@pytest.mark.slow
def test_joint_beats_er_beats_finetune(tiny):
    def final(method):
        run = finish(tiny(method=method, epochs=4, limit_per_class=None, memory=100))
        return outcome(run)["class_il"]["A_inf"]

    assert final("finetune") < 0.3 < 0.8 < final("er") < final("joint") + 0.02


def test_batches_cover_all_and_none_is_single():
    for size, batch in itertools.product(range(1, 70), (1, 7, 32)):
        bounds = batch_bounds(size, batch)
        assert [i for a, b in bounds for i in range(a, b)] == list(range(size))
        if batch > 1 and size > 1:
            assert all(b - a > 1 for a, b in bounds)


def test_learning_rate_drops_at_its_marks():
    rate = LearningRate((2, 4), 0.5)
    assert [rate.at(0.1, epoch) for epoch in range(6)] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


def test_a_run_learns_at_the_dropped_rate_whatever_the_phase(tiny):
    run = tiny(method="er", epochs=4, rehearse_last=2, tasks=2, limit_per_class=8,
               lr=0.08, lr_drop_at=(1, 3), lr_drop=0.5)  # fmt: skip
    rates = {(e.task, e.epoch, e.lr) for e in run.events() if isinstance(e, StepTaken)}
    by_epoch = [0.08, 0.04, 0.04, 0.02]
    assert rates == {(task, epoch, by_epoch[epoch]) for task in (0, 1) for epoch in range(4)}


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"momentum": 0.9, "weight_decay": 1e-4, "lr": 0.01},
        {"backbone": "mlp"},
        {"backbone": "resnet18", "width": 4},
        {"lr_drop_at": (1,), "batch_size": 7},
    ],
)
def test_variants_learn(tiny, changes):
    result = outcome(finish(tiny(epochs=3, limit_per_class=None, **changes)))
    assert result["task_il"]["A_1"] > 0.9


def test_a_loss_that_explodes_is_named(tiny):
    experiment = tiny(lr=1e18, options={"checkpoint_seconds": 0.0})
    with pytest.raises(Diverged, match=r"task 1, epoch 1, step \d+: try a smaller --lr"):
        finish(experiment)
    found = experiment.directory.checkpoint()
    assert found is None or all(
        torch.from_numpy(v).isfinite().all() for k, v in found.arrays.items() if "model" in k
    )


def test_a_loss_far_above_the_first_one_is_noted_once(tiny):
    run = finish(tiny(lr=1e3, method="finetune"))
    notes = [event["text"] for event in run.events() if event["event"] == "Noted"]
    assert [note for note in notes if "TRAINING DIVERGED" in note] == notes[:1]
    assert run.result()["diverged"] is True
    assert "diverged" not in finish(tiny("sound", lr=0.1)).result()


@pytest.mark.parametrize("stopped_after", [None, 5])
def test_checkpoints_of_the_ends_of_tasks_are_kept(tiny, stopped_after):
    options = {"checkpoint_seconds": 0.0, "keep_checkpoints": "task"}
    if stopped_after is not None:
        taken = itertools.count()
        experiment = tiny(options=options, tasks=2)
        experiment.stop = lambda: next(taken) == stopped_after
        with pytest.raises(Interrupted):
            finish(experiment)
    run = finish(tiny(options=options, tasks=2))
    kept = list(run.kept_checkpoints())
    assert [(c.numbers["task"], c.numbers["step"]) for c in kept] == [(1, 0), (2, 0)]
    folder = run.path / "checkpoint"
    assert len(list(folder.glob("*.safetensors"))) > len(kept)
    run.forget([int(run.memory()["id"][0])])
    assert not list(run.kept_checkpoints())
    assert len(list(folder.glob("*"))) == 1


def test_a_kept_checkpoint_that_is_damaged_is_named(tiny):
    run = finish(tiny(options={"keep_checkpoints": "task"}))
    name = read_manifest(run.path).kept[0]
    (run.path / name).write_bytes(b"")
    with pytest.raises(UserError, match=f"{name} is damaged"):
        list(run.kept_checkpoints())


def test_a_weight_that_is_no_number_is_told_with_the_moment(tiny):
    experiment = tiny(method="finetune", limit_per_class=4, tasks=2, epochs=2, batch_size=10)
    trainer = build_trainer(experiment.spec, experiment.benchmark)
    weight = trainer.learner.model.head.weight

    def told():
        with torch.no_grad():
            kept = weight.clone()
            weight[0, 0] = torch.nan
            with pytest.raises(Diverged) as error:
                trainer.state()
            weight.copy_(kept)
        return error.value.event

    moments = [told()]
    for event in trainer.run():
        if isinstance(event, StepTaken | TaskFinished):
            moments.append(told())
    assert [moment.removeprefix("a weight of the network became NaN or infinite ")
            for moment in moments] == [
        "before any training",
        "at task 1, epoch 1, step 1", "at task 1, epoch 1, step 2",
        "at task 1, epoch 2, step 1", "at task 1, epoch 2, step 2", "by the end of task 1",
        "at task 2, epoch 1, step 1", "at task 2, epoch 1, step 2",
        "at task 2, epoch 2, step 1", "at task 2, epoch 2, step 2", "by the end of task 2",
    ]  # fmt: skip
