"""Ordinary ways to write a network work for every size of a group: a crash would reveal how many units were drawn."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.private.engine import ClippedSum, Public
from tests.private.engine.oracle import each_loss, unit_gradients, verify
from tests.private.engine.small_networks import NETWORKS

SIZES = (1, 2, 15, 16, 17, 33)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operations that run once per unit warn about it
        yield


class _Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).view(x.size(0), -1))


class _Scaled(nn.Module):
    """A parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.temperature = nn.Linear(48, 10), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) * self.temperature


ORDINARY: dict[str, Callable[[], nn.Module]] = {
    "in place after 3x3": lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(128, 10)),
    "in place after 1x1": lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(128, 10)),
    "in place after linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 8, bias=False), nn.ReLU(inplace=True), nn.Linear(8, 10)),
    "in place after a norm": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(inplace=True), nn.Flatten(), nn.Linear(32, 10)),
    "in place after tokens": lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 10)),
    "view": _Viewed,
    "no axes": _Scaled,
}  # fmt: skip


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_networks_work_for_every_group(kind: str) -> None:
    torch.manual_seed(0)
    model = ORDINARY[kind]()
    verify(model, each_loss, (3, 4, 4), 10, apart=True)
    images, targets = torch.randn(33, 3, 4, 4), torch.randint(0, 10, (33,))
    expected = unit_gradients(model, images, targets, [1] * 33)
    for physical in (None, 16, 1):
        engine = ClippedSum(model, each_loss, clip=1.0, physical=physical)
        for count in SIZES:
            gradients = engine.gradients(images[:count], targets[:count], [1] * count)
            assert torch.allclose(gradients.double(), expected[:count], atol=1e-5)
            assert engine(images[:count], targets[:count], [1] * count).isfinite().all()


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_right_for_every_rule(name: str) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model, views = make().double(), [2, 1, 3, 1]
    images, targets = torch.randn(7, *shape, dtype=torch.float64), torch.randint(0, 10, (7,))
    gradients = ClippedSum(model, each_loss, clip=1.0).gradients(images, targets, views)
    assert torch.allclose(gradients, unit_gradients(model, images, targets, views), atol=1e-10)


def test_an_empty_batch_has_no_gradients() -> None:
    for engine in (ClippedSum(make(), each_loss, clip=1.0) for make in ORDINARY.values()):
        nothing = torch.zeros(0, 3, 4, 4), torch.zeros(0, dtype=torch.int64), []
        assert engine.gradients(*nothing).shape == (0, engine.size)
        assert engine.inner_products(*nothing, torch.ones(engine.size)).shape == (0,)
        assert torch.equal(engine(*nothing), torch.zeros(engine.size, dtype=torch.float64))


def test_views_apart_allow_changes_in_place() -> None:
    torch.manual_seed(0)
    model = ORDINARY["in place after 3x3"]()
    engine = ClippedSum(model, each_loss, clip=1.0)
    moves = [0.01 * torch.randn(engine.size) for _ in range(2)]
    images, targets = torch.randn(6, 3, 4, 4), torch.randint(0, 10, (6,))
    gradients = engine.gradients(images, targets, [2] * 3, Public(perturbations=moves))
    assert torch.allclose(gradients.double(), unit_gradients(model, images, targets, [2] * 3, moves), atol=1e-5)


def test_a_mean_over_three_views_has_the_models_precision() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 10).double()
    images, targets = torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 10, (6,))
    gradients = ClippedSum(model, each_loss, clip=1.0).gradients(images, targets, [3, 3])
    assert torch.allclose(gradients, unit_gradients(model, images, targets, [3, 3]), rtol=1e-13, atol=1e-15)


def test_sample_conv_net_of_opacus_trains() -> None:
    class SampleConvNet(nn.Module):
        """The network of the examples of Opacus: max pools and a view behind convolutions."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 16, 8, 2, padding=3), nn.Conv2d(16, 32, 4, 2)
            self.fc1, self.fc2 = nn.Linear(32 * 4 * 4, 32), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = F.max_pool2d(F.relu(self.conv1(x)), 2, 1)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1)
            return self.fc2(F.relu(self.fc1(x.view(-1, 32 * 4 * 4))))

    torch.manual_seed(0)
    model = SampleConvNet()
    verify(model, each_loss, (1, 28, 28), 10)
    images, targets = torch.randn(5, 1, 28, 28), torch.randint(0, 10, (5,))
    gradients = ClippedSum(model, each_loss, clip=1.0).gradients(images, targets, [1] * 5)
    assert torch.allclose(gradients.double(), unit_gradients(model, images, targets, [1] * 5), atol=1e-4)


class _State(nn.Module):
    """A weight meets a constant with a row for each image before it meets the images."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x + self.inner(torch.zeros(len(x), 8))))


def test_a_first_state_of_zeros_is_refused_with_the_fix() -> None:
    with pytest.raises(UnsafeLayer, match="new_zeros"):
        verify(_State(), each_loss, (8,), 10)


TIMM = ["resnet18", "vit_tiny_patch16_224", "efficientnet_b0", "convnext_atto", "vgg11", "mixer_s32_224", "nf_resnet26"]


def _group_norm(model: nn.Module) -> nn.Module:
    """BatchNorm by GroupNorm, with what timm's own layer does behind it."""
    for name, child in model.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            norm: nn.Module = nn.GroupNorm(1, child.num_features)
            after = [getattr(child, part) for part in ("drop", "act") if hasattr(child, part)]
            setattr(model, name, nn.Sequential(norm, *after))
        else:
            _group_norm(child)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_networks_of_timm_train_or_are_refused_by_name(name: str) -> None:
    try:
        timm = importlib.import_module("timm")
    except Exception as error:
        pytest.skip(f"timm cannot be imported here: {error}")
    model = timm.create_model(name, num_classes=10)
    engine: ClippedSum | None = None
    try:
        engine = ClippedSum(model, each_loss, clip=1.0)
    except (UnsafeLayer, ConfigError) as error:
        assert "Fix:" in str(error)
    model = _group_norm(model)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    engine = ClippedSum(model, each_loss, clip=1.0)
    images, targets = torch.rand(3, 3, 224, 224), torch.randint(0, 10, (3,))
    for count in (1, 3):
        assert float(engine(images[:count], targets[:count], [1] * count).norm()) <= count * 1.0001
