"""Small networks, one for each thing that can go wrong."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Two layers with tanh: nothing special."""

    def __init__(self, inputs: int = 6, hidden: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.flatten(1))))


class ConvNet(nn.Module):
    """Convolutions with BatchNorm, in-place ReLU, pooling."""

    def __init__(self, width: int = 4, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, groups=2, bias=False),
            nn.BatchNorm2d(2 * width, affine=False),
            nn.SiLU(),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Tracking(nn.Module):
    """Instance normalisation with running statistics, which no rule of ours knows."""

    def __init__(self, width: int = 4, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.InstanceNorm2d(width, affine=True, track_running_stats=True),
            nn.Tanh(),
        )
        self.head = nn.Linear(64 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


class Block(nn.Module):
    """A residual block; ``out += shortcut`` and in-place ReLU, as torchvision writes it."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """The CIFAR form: 3x3 stem, no max-pool, four stages of two blocks."""

    def __init__(self, width: int = 4, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        stages, inner = [], width
        for i in range(4):
            outer = width * 2**i
            stages += [Block(inner, outer, 1 if i == 0 else 2), Block(outer, outer, 1)]
            inner = outer
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inner, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Transformer(nn.Module):
    """A class token, positions, attention by the fused kernel, LayerNorm, GELU."""

    def __init__(self, features: int = 6, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 6, width))
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], dim=1) + self.position
        q, k, v = self.qkv(self.norm(h)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        h = h + F.gelu(self.out(a))
        return self.head(h[:, 0])


class Encoder(nn.Module):
    """torch's own encoder layer, with dropout inside its attention."""

    def __init__(self, features: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(features, 2, 12, dropout=0.2, batch_first=True)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


class Dropping(nn.Module):
    """Dropout twice, around a layer."""

    def __init__(self, inputs: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(inputs, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Tied(nn.Module):
    """One weight used twice, once transposed."""

    def __init__(self, inputs: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, inputs)
        self.second = nn.Linear(inputs, inputs)
        self.second.weight = self.first.weight
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.head(torch.tanh(self.second(h)) @ self.first.weight.T)


class Square(torch.autograd.Function):
    """A custom operation: no tape sees inside."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Custom(nn.Module):
    """Only double backward can differentiate this one."""

    def __init__(self, inputs: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Square.apply(self.body(x)))


class Overwriting(nn.Module):
    """Writes into a slice: the tape cannot follow, double backward can."""

    def __init__(self, inputs: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        h = h * 1.0
        h[:, 0] = h[:, 1] * 2.0
        return self.head(h)
