"""A frozen encoder: features once per example, exact, and private."""

import pytest
import torch
from torch import nn

from metasp.errors import UserError
from metasp.learner import ContinualLearner
from metasp.methods import METHODS
from tests.learner.factories import KNOWN, SHORT, X, Y, everything, net, pair


class Counting(nn.Module):
    """An encoder that counts the distinct rows it was asked for."""

    def __init__(self, width=16, seed=3):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.Dropout(0.5))
        self.seen, self.calls = [], 0

    def forward(self, x):
        assert not self.training
        assert not torch.is_grad_enabled()
        self.calls += 1
        self.seen += [row.numpy().tobytes() for row in x.unique(dim=0)]
        return self.body(x).tanh()


class Through(nn.Module):
    """What the learner must equal: the encoder inside the model, with its gradients off."""

    def __init__(self, encoder, head):
        super().__init__()
        self.encoder, self.head = encoder.requires_grad_(False), head

    def forward(self, x):
        with torch.no_grad():
            features = self.encoder.eval()(x)
        return self.head(features)


def head(outputs=10, width=16, seed=0):
    return net(outputs, seed, width)


def learner(method="er", encoder=None, model=None, **changes):
    settings = {"memory": 20, "epochs": 2, "settings": SHORT.get(method, {}), **changes}
    encoder = Counting() if encoder is None else encoder
    return ContinualLearner(head() if model is None else model, method, encoder=encoder, **settings)


def learned(made, tasks=2):
    for number in range(tasks):
        made.learn(pair(number), progress=False)
    return made


@pytest.mark.parametrize("keep", ["inputs", "features"])
def test_each_example_passes_the_encoder_once(keep):
    encoder = Counting()
    made = learner(encoder=encoder, epochs=4, keep=keep)
    tests = pair(2, count=80)
    made.learn(pair(0), test=(tests[0], tests[1] - 4), progress=False)
    made.learn(pair(1), progress=False)
    every = torch.cat([tests[0], pair(0)[0], pair(1)[0]]).unique(dim=0)
    assert len(encoder.seen) == len({*encoder.seen}) == len(every)


@pytest.mark.parametrize("keep", ["inputs", "features"])
@pytest.mark.parametrize("method", ["er", "metasp-rehsel", "derpp", "gss"])
def test_equals_training_through_the_encoder(method, keep):
    """The same numbers as with the encoder in the model; selections that look at pixels or at
    the features of the model see something else, so they are told what to look at."""
    settings = {"selection": "reservoir"} if method != "gss" else {}
    ours = learner(method, keep=keep, **settings)
    whole = Through(Counting(), head())
    theirs = ContinualLearner(
        whole, method, memory=20, epochs=2, settings=SHORT.get(method, {}), **settings
    )
    for number in range(2):
        ours.learn(pair(number), progress=False)
        theirs.learn(pair(number), progress=False)
    for mine, other in zip(ours.model.parameters(), whole.head.parameters()):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    assert ours.memory.ids.tolist() == theirs.memory.ids.tolist()
    torch.testing.assert_close(ours.outputs(X), theirs.outputs(X), rtol=1e-4, atol=1e-5)
    assert torch.equal(ours.predict(X), theirs.predict(X))
    known = Y < 4
    assert ours.score((X[known], Y[known])) == theirs.score((X[known], Y[known]))


@pytest.mark.parametrize("method", KNOWN)
def test_every_method_learns_features(tmp_path, method):
    made = learned(learner(method, keep="features", epochs=1))
    assert METHODS[method].selection is None or made.memory[0][0].shape == (16,)
    made.save(tmp_path / "saved")
    again = ContinualLearner.load(tmp_path / "saved", head(), encoder=Counting())
    assert torch.equal(again.outputs(X), made.outputs(X))


@pytest.mark.parametrize("keep", ["inputs", "features"])
def test_a_loaded_learner_goes_on_to_the_same_bits(tmp_path, keep):
    made = learned(learner(method="metasp", keep=keep))
    made.save(tmp_path / "saved")
    again = ContinualLearner.load(tmp_path / "saved", head(), encoder=Counting())
    for one in (made, again):
        one.learn(pair(2), progress=False)
    assert everything(again) == everything(made)


def test_the_memory_holds_features_and_nothing_of_the_raw_example(tmp_path):
    """No eight bytes of an example are in any file, with whatever the learner has written."""
    inputs = torch.randint(0, 256, (120, 64), dtype=torch.uint8)
    labels = torch.arange(120) % 4
    found = {}
    for keep in ("inputs", "features"):
        place = tmp_path / keep
        made = learner(keep=keep)
        made.learn((inputs[:60], labels[:60]), test=(inputs[60:], labels[60:]), progress=False)
        made.save(place / "saved")
        written = [path.read_bytes() for path in place.rglob("*") if path.is_file()]
        assert len(written) == 1
        parts = [
            row[start : start + 8].numpy().tobytes() for row in inputs for start in (0, 21, 56)
        ]
        found[keep] = sum(part in content for part in parts for content in written)
        if keep == "features":
            held = made._trainer.learner.memory
            assert made.memory[0][0].shape == (16,)
            assert held.inputs.shape == (20, 16)
            assert not made._trainer.tasks[0].train.source.numel()
    assert found["features"] == 0
    assert found["inputs"] >= 20  # the search finds what is there


def test_mistakes_are_one_sentence(tmp_path):
    def learn(model=None, **changes):
        made = ContinualLearner(head() if model is None else model, "er", **changes)
        made.learn(pair(0), progress=False)

    def said(match, **changes):
        with pytest.raises(UserError, match=match):
            learn(**changes)

    encoder = Counting()
    said("augment changes inputs", encoder=encoder, augment=lambda x, g: x)
    said("encoder must be a torch.nn.Module", encoder=lambda x: x)
    said("encoder and the model share", encoder=encoder, model=nn.Sequential(encoder, head()))
    said("the encoder cannot take inputs that are float32 of shape", encoder=nn.Linear(3, 16))
    said("encoder gives tuple", encoder=Says(lambda x: (x, x)))
    said("return one row of finite floats", encoder=Says(lambda x: x.long()))
    said("one row of finite floats per example", encoder=Says(lambda x: x[:1]))
    said("that are not finite", encoder=Says(lambda x: x / 0))
    said("unknown keep", encoder=encoder, keep="both")
    made = learned(learner(encoder=encoder), tasks=1)
    made.save(tmp_path / "saved")
    with pytest.raises(UserError, match="pass encoder= again"):
        ContinualLearner.load(tmp_path / "saved", head())
    with pytest.raises(UserError, match="encoder of other weights"):
        ContinualLearner.load(tmp_path / "saved", head(), encoder=Counting(seed=5))
    with torch.no_grad():
        encoder.body[0].weight.add_(1)
    with pytest.raises(UserError, match="encoder's weights have changed"):
        made.learn(pair(1), progress=False)


class Says(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_gmed_with_inputs_is_refused_with_the_remedy():
    with pytest.raises(UserError, match='keep="features"'):
        learned(learner("gmed", keep="inputs"))


def test_verified_examples_and_a_regression_pass_the_encoder():
    for keep in ("inputs", "features"):
        made = learner("er", keep=keep, selection="class-balanced")
        made.learn(pair(0), progress=False)
        names = made.trust((X[Y == 1][-2:], Y[Y == 1][-2:]))
        assert {*names} <= {*made.memory.ids.tolist()}
        line = learner(
            "er", keep=keep, model=head(1),
            loss_fn=lambda out, y: (out[:, 0] - y).square(),
        )  # fmt: skip
        line.learn((X[:100], Y[:100].float() / 10), progress=False)
        assert line.score((X[:100], Y[:100].float() / 10)) < 0.2


@pytest.mark.parametrize("keep", ["inputs", "features"])
def test_a_dictionary_of_tensors_passes_the_encoder(tmp_path, keep):
    class Masked(nn.Module):
        def forward(self, values, mask):
            return values[:, :16] * mask

    inputs, labels = pair(0)
    tree = {"values": inputs, "mask": torch.ones(len(inputs), 16)}
    made = learner(encoder=Masked(), keep=keep)
    made.learn((tree, labels), progress=False)
    plain = learner(encoder=Says(lambda x: x[:, :16]), keep=keep)
    plain.learn((inputs, labels), progress=False)
    assert torch.equal(made.outputs(tree), plain.outputs(inputs))
    made.save(tmp_path / "saved")
    again = ContinualLearner.load(tmp_path / "saved", head(), encoder=Masked())
    assert torch.equal(again.outputs(tree), made.outputs(tree))
