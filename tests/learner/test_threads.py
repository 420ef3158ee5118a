"""Readers in other threads: they see whole steps, and training goes on as without them."""

import copy
import threading
import time

import pytest
import torch
from torch import nn

from metasp import ContinualLearner
from metasp.events import StepTaken
from tests.learner.factories import X, everything, pair, stream_of


class Drifting(nn.Module):
    """A network whose every pass in training mode moves a buffer and draws random numbers, and
    whose every pass counts itself in another buffer."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(64, 24), nn.BatchNorm1d(24)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(24, 10)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        scale = 1 + self.passes / 1e4
        return self.head(self.drop(self.norm(self.body(x)).relu())) * scale


def learner_of(method):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Drifting()
    return ContinualLearner(model, method, memory=30, epochs=3, window=24, batch_size=8)


class Readers:
    """Threads that call something again and again until they are told to stop."""

    def __init__(self, *calls):
        self.stopping, self.errors = threading.Event(), []
        self.results = [[] for _ in calls]
        self.threads = [threading.Thread(target=self.repeat, args=pair_) for pair_ in
                        zip(calls, self.results)]  # fmt: skip

    def repeat(self, call, results):
        try:
            while not self.stopping.is_set():
                results.append(call())
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


def train(learner, follow=lambda: None):
    """Learn two tasks and a stream of batches; `follow` is called after each event."""
    for number in (1, 2):
        for _ in learner.stream(pair(number, 60)):
            follow()
    for batch in stream_of(30, size=8):
        learner.observe(batch)
        follow()
    learner.finish()
    follow()


@pytest.mark.parametrize("method", ["er", "metasp"])
def test_readers_beside_training_see_whole_steps_and_change_nothing(method, tmp_path):
    settings = {} if method == "er" else {"selection": "greedy"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Drifting()
    # Copies, for a thread that makes a network draws from the stream that a step draws from.
    alone, shared = (
        ContinualLearner(copy.deepcopy(model), method, memory=30, epochs=3, window=24, **settings)
        for _ in range(2)
    )
    inputs, file = X[:50], tmp_path / "file"
    whole = set()

    def note():
        whole.add(alone.outputs(inputs).numpy().tobytes())

    for learner in (alone, shared):
        learner.learn(pair(0, 60), progress=False)
    note()
    train(alone, note)

    def save_and_load():
        shared.save(file)
        loaded = ContinualLearner.load(file, copy.deepcopy(model))
        return everything(loaded)["model/body.weight"]

    calls = (
        lambda: shared.outputs(inputs).numpy().tobytes(),
        lambda: shared.predict(inputs),
        lambda: shared.score(pair(0, 40)),
        lambda: shared.judge(pair(0, 20)).num_rows,
        save_and_load,
    )
    with Readers(*calls) as readers:
        train(shared)
    assert everything(shared) == everything(alone)
    outputs, _, scores, judged, saved = readers.results
    assert min(map(len, readers.results)) >= 3
    assert set(outputs) <= whole
    assert len({*outputs}) > 3
    assert all(0 <= score <= 1 for score in scores)
    assert {*judged} == {20}
    assert len({*saved}) > 1


def slow_in_training(model, _):
    if model.training:
        time.sleep(0.01)


def test_a_reader_waits_for_one_step_and_not_for_the_task():
    learner = learner_of("er")
    learner.learn(pair(0, 60), progress=False)
    learner.model.register_forward_pre_hook(slow_in_training)
    seen = []
    with Readers(lambda: learner.predict(X[:5])) as readers:
        for event in learner.stream(pair(1, 120)):
            if isinstance(event, StepTaken):
                seen.append(len(readers.results[0]))
    assert len({*seen}) > len(seen) / 4


def test_prediction_from_inside_a_step_is_no_deadlock():
    learner = learner_of("er")
    learner.learn(pair(0, 60), progress=False)
    code = learner._trainer.learner
    plain = code.loss_fn

    def loss(outputs, targets):
        assert learner.predict(X[:3]).shape == (3,)
        return plain(outputs, targets)

    code.loss_fn = loss
    with Readers(lambda: learner.predict(X[:5])):
        learner.learn(pair(1, 60), progress=False)
    assert learner.tasks == 2
