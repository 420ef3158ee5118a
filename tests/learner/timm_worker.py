"""Tiny random models of timm in a learner and under `sp_influence`. A process of its own, as timm
stands apart from the other packages: `python -m tests.learner.timm_worker FOLDER`, where FOLDER
holds timm and torchvision."""

import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch

from metasp import ContinualLearner, sp_influence
from tests.oracles import influence_through_weights, torch_step


def without_kernels() -> torch.library.Library:
    """Names of two operators whose shapes torchvision registers when it is imported, even where its
    kernels, which are built for one kind of torch, cannot be loaded. timm needs none of them."""
    library = torch.library.Library("torchvision", "DEF")
    boxes = "Tensor dets, Tensor scores, float iou_threshold"
    for name in ("nms", "qnms"):
        library.define(f"{name}({boxes}) -> Tensor")
    return library


def pictures(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples of two classes: the class is which quarter is bright."""
    labels = torch.arange(64) % 2 + 2 * number
    inputs = torch.randn(64, 1, 8, 8)
    for row, label in enumerate(labels.tolist()):
        inputs[row, 0, 4 * (label // 2) :][:4, 4 * (label % 2) :][:, :4] += 3
    return inputs, labels


def models():
    import timm

    picture = {"in_chans": 1, "num_classes": 4}
    vit = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    adamw, sgd = torch.optim.AdamW, partial(torch.optim.SGD, momentum=0.9)
    yield timm.create_model("vit_tiny_patch16_224", **picture, **vit), adamw
    yield timm.create_model("test_resnet", **picture), sgd


def main() -> None:
    sys.path.append(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        kept = without_kernels()
        assert kept is not None
    for model, make in models():
        error = largest_error(deepcopy(model), make)
        learner = ContinualLearner(
            model, "er", memory=24, epochs=40, batch_size=8, optimizer=partial(make, lr=1e-3),
        )  # fmt: skip
        data = [pictures(number) for number in range(2)]
        for part in data:
            learner.learn(part, progress=False)
        print(type(model).__name__, learner.score(data[1]), error, flush=True)


def largest_error(model: torch.nn.Module, make: Callable[..., torch.optim.Optimizer]) -> float:
    """How far influence is from double backward, in float64, relative to its largest value."""
    torch.set_default_dtype(torch.float64)
    model = model.double().train()
    with torch.no_grad():
        for parameter in model.parameters():  # timm's heads begin at zero
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch, old, new = ((x[:6], y[:6]) for x, y in map(pictures, (0, 1, 0)))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    optimizer = make(model.parameters(), lr=0.01)
    for shift in range(3):  # the first step of AdamW hardly depends on the gradient's length
        optimizer.zero_grad()
        loss(model(new[0]), (new[1] + shift) % 4).mean().backward()
        optimizer.step()
    found = sp_influence(model, loss, batch, old, new, optimizer=optimizer, steps=2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        step = torch_step(optimizer, model)
        wanted = influence_through_weights(model, loss, batch, old, step, 2)
    torch.set_default_dtype(torch.float32)
    return float((found.stability - wanted).abs().max() / wanted.abs().max())


if __name__ == "__main__":
    main()
