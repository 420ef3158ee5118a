"""A stream of noise images for measuring speed: the time of a step does not hang on the picture."""

import torch

from metasp.data import Benchmark, Source, Transform, split
from metasp.influence import Ranks
from metasp.spec import RunSpec
from metasp.train import Trainer, build_trainer
from metasp.train.from_spec import complete
from metasp.types import Streams


def noise_images(per_class: int, tasks: int = 5, augmented: bool = True) -> Benchmark:
    """Ten classes of noise, 32×32 in three channels, dealt to tasks."""
    noise = Streams(0)["noise"]
    count = 10 * per_class
    inputs = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=noise)
    labels = (torch.arange(count) // per_class).long()
    source = Source(
        name="noise",
        inputs=inputs,
        labels=labels,
        test_inputs=inputs[:: count // 20],
        test_labels=labels[:: count // 20],
        class_names=tuple(str(label) for label in range(10)),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        digest="noise",
        tasks=tasks,
        crop_padding=4 if augmented else 0,
        flip=augmented,
    )
    transform = Transform(source.mean, source.std, source.crop_padding, source.flip)
    return Benchmark(source, split(source), transform)


def noise_trainer(benchmark: Benchmark, ranks: Ranks | None = None, **changes: object) -> Trainer:
    """A trainer on noise with the threads torch has now, alone or with other processes."""
    spec = RunSpec.from_dict({"benchmark": "noise", "lr": 1e-3, "device": "cpu", **changes})
    return build_trainer(complete(spec, benchmark), benchmark, ranks)
