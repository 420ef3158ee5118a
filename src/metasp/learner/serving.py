"""An HTTP server around a learner, which answers while it goes on learning.

learner = ContinualLearner.load("learner.safetensors", model)
serve(learner, save="learner.safetensors")
"""

import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from metasp.errors import UserError
from metasp.events import Event, StepTaken
from metasp.learner.learner import ContinualLearner

try:
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, PlainTextResponse
    from pydantic import BaseModel
    from starlette.middleware.trustedhost import TrustedHostMiddleware
except ImportError as error:
    raise UserError("this needs FastAPI: pip install 'metasp[serve]'.") from error

HOST = "127.0.0.1"
Names = list[int] | list[str]


class ToPredict(BaseModel):
    """Inputs, a row each or columns by name, and ids by which feedback on the answers may come."""

    inputs: Any
    ids: list[str] | None = None


class ToObserve(BaseModel):
    """Examples to learn from."""

    inputs: Any
    labels: list[int] | list[str] | list[float]
    ids: Names | None = None


class ToForget(BaseModel):
    ids: Names
    reason: str = ""


class Feedback(BaseModel):
    """The label that an input should have been given, by the id of its prediction."""

    id: str
    label: int | str


class Served:
    """A learner, the inputs of its latest predictions, and what was counted of its requests."""

    def __init__(
        self,
        learner: ContinualLearner,
        batch_size: int,
        remembered: int,
        save: Path | None,
        save_seconds: float,
        read: Callable[[Any], Any],
    ) -> None:
        self.learner, self.batch_size, self.remembered = learner, batch_size, remembered
        self.save, self.save_seconds, self.read = save, save_seconds, read
        self.lock = threading.Lock()
        self.predicted: OrderedDict[str, Any] = OrderedDict()  # inputs (1, …) by id
        self.waiting: list[tuple[str, Any, int | str]] = []  # feedback that is no batch yet
        self.counts: Counter[str] = Counter()
        self.accuracy: dict[str, float] = {}
        self.saved = time.monotonic()

    def predict(self, request: ToPredict) -> dict[str, Any]:
        """Answer inputs, all by one version of the learner."""
        inputs = self.read(request.inputs)
        with self.learner.paused():
            probabilities = self.learner.predict_proba(inputs)
            classes, names = self.learner.classes, self.learner.class_names
            version = self.learner.version
        ids = request.ids or [uuid.uuid4().hex for _ in probabilities]
        if len(ids) != len(probabilities):
            raise UserError(f"{len(ids)} ids were given for {len(probabilities)} inputs.")
        with self.lock:
            for row, name in enumerate(ids):
                self.predicted[name] = tree_map(lambda t, row=row: t[row : row + 1].clone(), inputs)
            while len(self.predicted) > self.remembered:
                self.predicted.popitem(last=False)
        labels = [names[c] if names else c for c in classes]
        return {
            "predictions": [labels[best] for best in probabilities.argmax(1).tolist()],
            "probabilities": probabilities.tolist(),
            "classes": labels,
            "ids": ids,
            "version": version,
        }

    def observe(self, request: ToObserve) -> dict[str, Any]:
        """Learn from a batch."""
        return self._observed(self.read(request.inputs), request.labels, request.ids)

    def feedback(self, request: Feedback) -> dict[str, Any]:
        """Learn from the label of a prediction, as soon as there is a batch of them."""
        with self.lock:
            if request.id not in self.predicted:
                raise UserError(
                    f"no prediction is remembered by the id {request.id!r}: send its input to "
                    "observe."
                )
            self.waiting.append((request.id, self.predicted.pop(request.id), request.label))
            batch = self.waiting if len(self.waiting) >= self.batch_size else []
            self.waiting = [] if batch else self.waiting
        if not batch:
            return {"waiting": len(self.waiting), "version": self.learner.version}
        _, inputs, labels = zip(*batch)
        return self._observed(tree_map(lambda *t: torch.cat(t), *inputs), list(labels), None)

    def forget(self, request: ToForget) -> dict[str, Any]:
        """Forget examples, and inputs of predictions."""
        with self.lock:
            dropped = [name for name in request.ids if name in self.predicted]
            for name in dropped:
                del self.predicted[str(name)]
            self.waiting = [one for one in self.waiting if one[0] not in request.ids]
        learned: Any = [name for name in request.ids if name not in dropped]
        gone = self.learner.forget(learned, reason=request.reason) if learned else []
        return {"forgotten": [*dropped, *gone], "version": self.learner.version}

    def health(self) -> dict[str, Any]:
        return {"status": "ok", "version": self.learner.version, "tasks": self.learner.tasks}

    def metrics(self) -> str:
        """Return what was counted, in the text format of Prometheus."""
        learner, counts = self.learner, self.counts.copy()
        gauges = {"version": learner.version, "memory_examples": len(learner.memory)}
        lines = [f'metasp_requests_total{{path="{path}"}} {n}' for path, n in counts.items()]
        lines += [f"metasp_observed_batches_total {learner.batches}"]
        lines += [f"metasp_{name} {value}" for name, value in {**gauges, **self.accuracy}.items()]
        return "\n".join(lines) + "\n"

    def store(self) -> None:
        """Save the learner, if it was told where."""
        if self.save is not None:
            self.learner.save(self.save)
            self.saved = time.monotonic()

    def _observed(self, inputs: Any, labels: list[Any], ids: Names | None) -> dict[str, Any]:
        events: Iterable[Event] = self.learner.observe((inputs, labels), ids)
        for event in events:
            if isinstance(event, StepTaken):
                names = ("prequential", "prequential_newest")
                self.accuracy = {n: event.numbers[n] for n in names if n in event.numbers}
        if time.monotonic() - self.saved > self.save_seconds:
            self.store()
        return {"learned": len(labels), "version": self.learner.version, **self.accuracy}


def as_floats(inputs: Any) -> Any:
    """Return the JSON of inputs, rows or columns by name, as tensors of floats."""
    if isinstance(inputs, dict):
        return {name: as_floats(column) for name, column in inputs.items()}
    try:
        return torch.tensor(inputs, dtype=torch.float32)
    except (ValueError, TypeError) as error:
        raise UserError(f"inputs are no rows of numbers of one length ({error}).") from error


def make_app(
    learner: ContinualLearner,
    *,
    save: str | Path | None = None,
    save_seconds: float = 60.0,
    batch_size: int = 8,
    remembered: int = 10_000,
    read: Callable[[Any], Any] = as_floats,
) -> FastAPI:
    """Return a FastAPI app around a learner. It is saved to ``save`` every ``save_seconds`` while
    it learns, and at the end. ``batch_size`` pieces of feedback are learned at once, on the newest
    ``remembered`` predictions; ``read`` makes inputs of their JSON (default: floats)."""
    where = None if save is None else Path(save)
    served = Served(learner, batch_size, remembered, where, save_seconds, read)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        served.store()

    app = FastAPI(title="metasp", lifespan=lifespan)
    # A page of the web that has its own name point here must not reach it.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    @app.exception_handler(UserError)
    async def refused(request: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=422)

    @app.middleware("http")
    async def counted(request: Request, call_next: Any) -> Any:
        answer = await call_next(request)
        if answer.status_code < 400:
            served.counts[request.url.path] += 1
        return answer

    for method in (served.predict, served.observe, served.feedback, served.forget):
        app.post(f"/{method.__name__}")(method)
    app.get("/health")(served.health)
    app.get("/metrics", response_class=PlainTextResponse)(served.metrics)
    return app


def serve(learner: ContinualLearner, port: int = 8000, **options: Any) -> None:
    """Serve a learner on this machine alone, until the process is stopped. ``options`` are those of
    `make_app`."""
    uvicorn.run(make_app(learner, **options), host=HOST, port=port, log_level="warning")
