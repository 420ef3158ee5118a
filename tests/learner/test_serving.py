"""A server around a learner, asked by many clients while it learns."""

import http.client
import json
import socket
import threading
import time
from collections import defaultdict

import pytest
import torch

from metasp import ContinualLearner
from tests.learner.factories import X, Y, everything, net, stream_of

pytest.importorskip("fastapi")

import uvicorn

from metasp.learner.serving import make_app


def learner_of() -> ContinualLearner:
    learner = ContinualLearner(net(), "er", memory=30, window=24, epochs=1)
    return learner.learn((X[:200], Y[:200]), progress=False)


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, path, content=None, headers=None):
        body = None if content is None else json.dumps(content)
        headers = {"Content-Type": "application/json", **(headers or {})}
        self.connection.request("GET" if content is None else "POST", path, body, headers)
        answer = self.connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text[:1] in "{[" else text

    def told(self, path, content=None):
        status, answer = self.ask(path, content)
        assert status == 200, answer
        return answer


@pytest.fixture
def start():
    servers = []

    def begin(learner, **options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = uvicorn.Config(make_app(learner, **options), port=port, log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return port

    def stop():
        for server, thread in servers:
            server.should_exit = True
            thread.join(timeout=30)
        servers.clear()

    begin.stop = stop
    yield begin
    stop()


def test_it_predicts_learns_from_feedback_forgets_and_saves(start, tmp_path):
    learner, file = learner_of(), tmp_path / "learner"
    client = Client(start(learner, save=file, batch_size=2))
    rows = X[300:304]
    answer = client.told("/predict", {"inputs": rows.tolist(), "ids": ["a", "b", "c", "d"]})
    assert answer["predictions"] == learner.predict(rows).tolist()
    assert torch.tensor(answer["probabilities"]).sum(1).tolist() == pytest.approx([1.0] * 4)
    assert client.told("/feedback", {"id": "a", "label": int(Y[300])})["waiting"] == 1
    learned = client.told("/feedback", {"id": "b", "label": int(Y[301])})
    assert learned["learned"] == 2
    assert learned["version"] == answer["version"] + 1 == learner.version
    status, refused = client.ask("/feedback", {"id": "a", "label": 1})
    assert (status, "no prediction is remembered" in refused["detail"]) == (422, True)
    assert client.told("/forget", {"ids": ["c"]})["forgotten"] == ["c"]
    assert client.ask("/feedback", {"id": "c", "label": 1})[0] == 422
    assert client.told("/forget", {"ids": [3, 200]})["forgotten"] == [3, 200]
    batch = {"inputs": X[:4].tolist(), "labels": Y[:4].tolist()}
    assert "prequential" in client.told("/observe", batch)
    for wrong in ({"inputs": [[1.0], [1.0, 2.0]]}, {"inputs": [[1.0]]}, {"inputs": "x"}):
        assert client.ask("/predict", wrong)[0] == 422
    assert client.told("/health")["status"] == "ok"
    metrics = client.told("/metrics")
    assert 'metasp_requests_total{path="/predict"} 1' in metrics
    assert "metasp_observed_batches_total 2" in metrics
    assert client.ask("/health", headers={"Host": "evil.example"})[0] == 400
    start.stop()
    assert everything(ContinualLearner.load(file, net())) == everything(learner)


@pytest.mark.parametrize(
    ("clients", "requests"), [(5, 100), pytest.param(50, 10_000, marks=pytest.mark.slow)]
)
def test_every_answer_is_that_of_one_version_while_it_learns(start, clients, requests):
    """Beside a twin that learns the same batches alone, whose answers are noted at each version."""
    shared, twin = learner_of(), learner_of()
    port, inputs = start(shared), X[400:403]
    batches = [*stream_of(max(20, requests // 50))]
    wanted = {twin.version: twin.predict_proba(inputs)}
    for batch in batches:
        twin.observe(batch)
        wanted[twin.version] = twin.predict_proba(inputs)
    answers, errors = defaultdict(list), []

    def predict():
        try:
            client = Client(port)
            for _ in range(requests // clients):
                answer = client.told("/predict", {"inputs": inputs.tolist()})
                answers[answer["version"]].append(answer["probabilities"])
        except BaseException as error:
            errors.append(error)

    def observe():
        try:
            client = Client(port)
            for x, y in batches:
                client.told("/observe", {"inputs": x.tolist(), "labels": y.tolist()})
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=observe)]
    threads += [threading.Thread(target=predict) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert sum(map(len, answers.values())) == requests
    assert len(answers) > 3
    for version, found in answers.items():
        for one in found:
            torch.testing.assert_close(torch.tensor(one), wanted[version])
    assert everything(shared) == everything(twin)
