"""Observes a stream of batches and saves itself after each: to be killed at any moment.
Usage: python -m tests.learner.observing_worker FILE COUNT"""

import sys
from pathlib import Path

from river.drift import ADWIN

from metasp.learner import ContinualLearner
from tests.learner.factories import net, stream_of

CHOICES = {"selection": "greedy", "memory": 40, "window": 48, "head": "3", "momentum": 0.9}


def main(file: Path, count: int) -> None:
    if file.exists():
        learner = ContinualLearner.load(file, net(2), detector=ADWIN)
    else:
        learner = ContinualLearner(net(2), "metasp", detector=ADWIN, **CHOICES)
    for batch in stream_of(count, start=learner.batches):
        learner.observe(batch)
        learner.save(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
