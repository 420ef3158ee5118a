"""What users do to a learner besides learning: freeze, tie, interrupt, thread, forget wrongly."""

import copy
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from metasp import ContinualLearner
from metasp.errors import UserError

X = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(48) % 4
FIRST, SECOND = (X[:24], Y[:24]), (X[24:], Y[24:])


def net(*layers: nn.Module) -> nn.Sequential:
    made = nn.Sequential(*(layers or (nn.Linear(8, 8), nn.Linear(8, 4))))
    for number, parameter in enumerate(made.parameters()):
        stream = torch.Generator().manual_seed(number)
        parameter.data = torch.randn(parameter.shape, generator=stream) / 3
    return made


def learner_of(model=None, method="er", **changes) -> ContinualLearner:
    settings = {"memory": 8, "epochs": 2, "batch_size": 8, **changes}
    return ContinualLearner(net() if model is None else model, method, **settings)


def after(*data, **changes) -> ContinualLearner:
    learner = learner_of(**changes)
    for dataset in data:
        learner.learn(dataset, progress=False)
    return learner


def square(outputs, targets):
    return (outputs - targets).square().mean(1)


def test_targets_that_are_data_are_kept_in_memory_alone(tmp_path):
    """An autoencoder's labels are its inputs: what is not in memory is in no file."""
    learner = learner_of(net(nn.Linear(8, 8)), memory=4, loss_fn=square, lr=0.01)
    learner.learn((X, X), progress=False).learn((X + 1, X + 1), progress=False)

    def inside() -> int:
        learner.save(tmp_path / "file")
        content = (tmp_path / "file").read_bytes()
        return sum(row.numpy().tobytes() in content for row in [*X, *(X + 1)])

    assert inside() == len(learner.memory) == 4
    kept = learner._trainer.tasks[0].train.labels  # their shape alone, here and in the file
    assert kept.shape == (48, 8)
    assert not kept.any()
    assert load_file(tmp_path / "file")["tasks/0/labels"].shape == (0, 8)
    loaded = ContinualLearner.load(tmp_path / "file", net(nn.Linear(8, 8)), loss_fn=square)
    for one in (learner, loaded):
        one.learn((X + 2, X + 2), progress=False)
    assert torch.equal(learner.model[0].weight, loaded.model[0].weight)
    learner.forget(predicate=lambda row: True)
    assert inside() == 0
    with pytest.raises(UserError, match="keeps to one kind"):
        learner.learn(FIRST, progress=False)


@pytest.mark.parametrize("method", ["er", "metasp-rehsel"])
def test_an_id_given_to_another_example_is_refused(method):
    learner = learner_of(method=method)
    learner.learn((X[:24], torch.zeros(24).long()), ids=range(24), progress=False)
    with pytest.raises(UserError, match="id 0 was given to an example of class 0 before"):
        learner.learn((X[24:], torch.ones(24).long()), ids=range(24), progress=False)
    learner.learn((X[:24], torch.zeros(24).long()), ids=range(24), progress=False)  # the same again
    assert learner.tasks == 2


@pytest.mark.parametrize("method", ["er", "agem", "gem", "metasp"])
def test_layers_frozen_and_thawed_between_tasks(method):
    frozen = after(FIRST, method=method)
    frozen.model[0].requires_grad_(False)
    before = frozen.model[0].weight.clone()
    frozen.learn(SECOND, progress=False)
    assert torch.equal(frozen.model[0].weight, before)
    model = net()
    model[0].requires_grad_(False)
    thawed = after(FIRST, model=model, method=method)
    model[0].requires_grad_(True)
    before = model[0].weight.detach().clone()
    thawed.learn(SECOND, progress=False)
    assert not torch.equal(model[0].weight, before)
    model.requires_grad_(False)
    assert thawed.predict(X).shape == (48,)
    with pytest.raises(UserError, match="no trainable parameters"):
        thawed.learn(SECOND, progress=False)


def test_momentum_comes_back_to_its_own_layer_whatever_is_frozen(tmp_path):
    layers = [nn.Linear(8, 8) for _ in range(3)]
    model = net(*layers)
    model[0].requires_grad_(False)
    saved = after(FIRST, model=model, momentum=0.9)
    saved.save(tmp_path / "file")
    loaded = ContinualLearner.load(tmp_path / "file", net(*(nn.Linear(8, 8) for _ in range(3))))
    kept, back = (one._trainer.learner.optimizer.state for one in (saved, loaded))
    for number in (1, 2):
        one, two = (state[m.model[number].weight] for state, m in ((kept, saved), (back, loaded)))
        assert torch.equal(one["momentum_buffer"], two["momentum_buffer"])
    assert loaded.model[0].weight not in back


def test_a_normalisation_that_was_put_to_rest_stays_at_rest():
    model = net(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model[1].eval()
    mean = model[1].running_mean.clone()
    learner = after(FIRST, SECOND, model=model, method="metasp-rehsel")
    assert torch.equal(model[1].running_mean, mean)
    model.eval()  # for serving: learning wakes all of it
    learner.learn(FIRST, progress=False)
    assert not torch.equal(model[1].running_mean, mean)
    assert not model.training


@pytest.mark.parametrize("ids", [torch.ones(8) > 0, [True], [5.9], [float("nan")], [-1], [2**80]])
def test_ids_to_forget_are_whole_numbers(ids):
    learner = after(FIRST)
    with pytest.raises(UserError, match="whole numbers"):
        learner.forget(ids=ids)
    assert not learner.removed


def test_forgetting_takes_any_collection_and_keeps_its_own_record():
    learner = after(FIRST)
    assert learner.forget(ids={3, 4}) == [3, 4]
    assert learner.forget(ids=(i for i in (5,))) == learner.forget(ids=np.int64(5)) == [5]
    learner.removed[0]["ids"].clear()
    assert [record["ids"] for record in learner.removed] == [[3, 4], [5], [5]]
    learner.learn(SECOND, progress=False)
    assert len(learner._trainer.tasks[-1].train) == 24


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x))


def test_a_head_that_shares_its_weight_cannot_grow():
    with pytest.raises(UserError, match=r"shares its weight with 'first.weight'"):
        learner_of(Tied(), head="last")


def test_learners_in_two_threads_do_as_each_alone():
    def trained(together: bool) -> list[torch.Tensor]:
        learners = [learner_of(net(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)), seed=seed)
                    for seed in (1, 2)]  # fmt: skip
        threads = [threading.Thread(target=one.learn, args=(FIRST,), kwargs={"progress": False})
                   for one in learners]  # fmt: skip
        before = torch.get_rng_state()
        for thread in threads:
            thread.start()
            if not together:
                thread.join()
        for thread in threads:
            thread.join()
        assert torch.equal(before, torch.get_rng_state())
        return [one.model[0].weight.detach() for one in learners]

    for one, two in zip(trained(True), trained(False)):
        assert torch.equal(one, two)


class Drifting(nn.Module):
    """Keeps a running mean that its state does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 4)
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.out(x - self.mean)


def test_a_task_given_up_leaves_nothing_behind():
    def loader():
        return DataLoader(TensorDataset(*FIRST), batch_size=8, shuffle=True)

    plain, left = learner_of(), learner_of()
    for _ in left.stream(loader()):
        break
    for learner in (plain, left):
        learner.learn(loader(), progress=False)
    assert torch.equal(plain.model[0].weight, left.model[0].weight)
    drifting = Drifting()
    learner = learner_of(drifting)
    for count, _ in enumerate(learner.stream(FIRST)):
        if count == 2:
            break
    assert bool((drifting.mean == 0).all())


def test_interrupted_while_the_bar_is_drawn_it_is_as_before(monkeypatch, tmp_path):
    from rich.progress import Progress

    learner = learner_of()
    before = learner.model[0].weight.detach().clone()
    calls = iter(range(10**6))

    def interrupted(*_, **__):
        if next(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "update", interrupted)
    monkeypatch.setattr(Progress, "advance", interrupted)
    try:
        learner.learn(FIRST, progress=True)
    except KeyboardInterrupt:  # while its traceback still holds every frame
        assert torch.equal(learner.model[0].weight, before)
        learner.save(tmp_path / "file")
        return
    pytest.fail("the bar was never drawn")


def test_what_is_not_known_yet_is_not_guessed():
    learner = learner_of()
    for ask in (lambda: learner.predict(X), lambda: learner.score(FIRST)):
        with pytest.raises(UserError, match="no class has been learned yet"):
            ask()
    assert learner.outputs(X).shape == (48, 4)
    learner.learn(FIRST, progress=False)
    assert learner.predict(X).shape == (48,)
    with pytest.raises(UserError, match=r"x\[None\]"):
        learner.predict(X[0])


def test_one_output_for_two_classes_is_scored_the_same_way_throughout():
    def loss(outputs, targets):
        return nn.functional.binary_cross_entropy_with_logits(
            outputs[:, 0], targets.float(), reduction="none"
        )

    learner = learner_of(net(nn.Linear(8, 1)), loss_fn=loss)
    learner.learn((X[:24], 0 * Y[:24]), progress=False)
    one = learner.score((X[:24], 0 * Y[:24]))
    assert one == pytest.approx(float(loss(learner.outputs(X[:24]), 0 * Y[:24]).mean()))


def test_a_copy_of_gss_goes_on_as_gss():
    one = after(FIRST, method="gss")
    two = copy.deepcopy(one)
    for learner in (one, two):
        learner.learn(SECOND, progress=False)
    assert torch.equal(one.model[0].weight, two.model[0].weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("method", ["agem", "gem", "gss", "mir", "metasp-rehsel"])
def test_models_of_other_precisions_learn(method, dtype):
    learner = after(FIRST, SECOND, model=net().to(dtype), method=method)
    assert learner.tasks == 2
    assert learner.model[0].weight.dtype == dtype


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        return self.out(x), x


@pytest.mark.parametrize(
    ("dataset", "changes", "words"),
    [
        ({"x": X, "y": Y}, {}, "pairs of input and label"),
        (([[1.0, 2.0], [3.0]], [0, 1]), {}, "different lengths"),
        (((10 * X).long(), Y), {}, r"\.float\(\)"),
        ((X[:, :5], Y), {}, "cannot take inputs"),
        ((X, Y[:, None]), {}, r"labels are int64 of shape \(1,\)"),
        (FIRST, {"model": Pair()}, "returns a tuple"),
        ((X, Y + 3 * 10**12), {"head": "1"}, "number the classes from 0"),
        (FIRST, {"metric": lambda o, t: None, "test": True}, "metric returns nothing"),
    ],
)
def test_mistakes_in_data_and_model_are_one_sentence(dataset, changes, words):
    test = dataset if changes.pop("test", None) else None
    with pytest.raises(UserError, match=words):
        learner_of(**changes).learn(dataset, test=test, progress=False)


def test_it_learns_where_the_caller_wants_no_gradients():
    with torch.no_grad():
        quiet = after(FIRST)
    assert torch.equal(quiet.model[0].weight, after(FIRST).model[0].weight)
