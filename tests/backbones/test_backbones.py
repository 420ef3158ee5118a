import pytest
import torch

from metasp.backbones import BACKBONES, build, default_width
from metasp.errors import UserError
from metasp.types import Streams


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_resnet18_has_the_public_parameter_count():
    assert parameters(build("resnet18", (3, 32, 32), 10, None, Streams(0)["model"])) == 11_173_962


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_logits_for_every_class_from_features_and_head(name, shape):
    model = build(name, shape, 7, 4, Streams(0)["model"])
    x = torch.randn(3, *shape, generator=Streams(1)["x"])
    assert model(x).shape == (3, 7)
    assert torch.equal(model.head(model.features(x)), model(x))


def test_initialisation_is_the_generators_alone():
    before = torch.get_rng_state()
    one, two, three = (
        build("convnet", (1, 8, 8), 10, None, Streams(seed)["model"]) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    state = one.state_dict()
    assert all(torch.equal(value, two.state_dict()[key]) for key, value in state.items())
    assert not torch.equal(one.head.weight, three.head.weight)
    assert all(value.isfinite().all() for value in state.values())


def test_rows_need_the_mlp():
    with pytest.raises(UserError, match="use mlp"):
        build("convnet", (12,), 3, None, Streams(0)["model"])
    assert build("mlp", (12,), 3, None, Streams(0)["model"])(torch.zeros(2, 12)).shape == (2, 3)


def test_unknown_backbone_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'resnet18'"):
        default_width("resnet-18")
