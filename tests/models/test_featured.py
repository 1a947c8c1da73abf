"""A model in two parts, the first frozen, the second trained; a function applied in pieces; the input for ImageNet."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from dpvision.models import Featured, build, split_head
from dpvision.models.featured import ImagenetInput, apply_in_pieces
from dpvision.models.vit import Vit
from tests.private.engine.oracle import each_loss, verify


def _featured() -> Featured:
    torch.manual_seed(0)
    return Featured(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5)), nn.Sequential(nn.Tanh(), nn.Linear(6, 3)))


def test_the_rest_on_features_is_the_whole() -> None:
    model, x = _featured(), torch.randn(5, 4)
    by_hand = torch.tanh(x @ model.prefix[0].weight.T + model.prefix[0].bias)
    assert torch.allclose(model(x), by_hand @ model.rest[1].weight.T + model.rest[1].bias, atol=1e-6)
    assert torch.equal(model(x), model.rest(model.features(x)))


def test_only_the_rest_can_be_trained() -> None:
    model, x = _featured(), torch.randn(5, 4, requires_grad=True)
    model(x).sum().backward()
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {"rest.1.weight", "rest.1.bias"}
    assert all(p.grad is None for p in model.prefix.parameters()) and x.grad is None
    assert model.rest[1].weight.grad is not None


def test_the_prefix_draws_nothing_even_in_training() -> None:
    model, x = _featured().train(), torch.randn(5, 4)
    assert model.training and model.rest.training and not model.prefix.training
    assert torch.equal(model.features(x), model.features(x))


class _Counts(nn.Module):
    """A feature with the number of images in the call, next to their sum."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.full((len(x),), float(len(x))), x.flatten(1).sum(1)], dim=1)


def test_features_are_computed_for_the_same_number_of_images_at_a_time() -> None:
    model = Featured(_Counts(), nn.Linear(2, 1), piece=4)
    for count in (0, 1, 4, 5, 11):
        x = torch.rand(count, 3)
        assert torch.equal(model.features(x), torch.stack([torch.full((count,), 4.0), x.sum(1)], dim=1))
    assert Featured(_Counts(), nn.Linear(2, 1), piece=None).features(torch.rand(5, 3))[0, 0] == 5


def _vit() -> Vit:
    model = build("vit-tiny", (3, 16, 16), classes=5, seed=0)
    assert isinstance(model, Vit)
    return model


def test_an_image_has_the_same_features_in_any_batch() -> None:
    torch.set_num_threads(2)
    parts = (split_head(_vit()), build("scatter-cnn", (3, 16, 16), classes=5, seed=0))
    x = torch.rand(19, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for model in parts:
        assert isinstance(model, Featured)
        together = model.features(x)
        assert torch.equal(model.features(x.flip(0)).flip(0), together)
        assert torch.equal(model.features(x.contiguous(memory_format=torch.channels_last)), together)
        for place in (0, 7, 18):
            assert torch.equal(model.features(x[place : place + 1])[0], together[place])


def test_a_frozen_transformer_passes_the_trial() -> None:
    verify(split_head(_vit()), each_loss, (3, 16, 16), 5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 11])
def test_pieces_have_one_size_and_one_thread(threads: int, count: int) -> None:
    torch.set_num_threads(threads)
    seen: list[tuple[int, int, bool]] = []

    def squares(x: Tensor) -> Tensor:
        seen.append((len(x), torch.get_num_threads(), torch.is_grad_enabled()))
        return x * x

    x = torch.rand(count, 3)
    with torch.no_grad():
        assert torch.equal(apply_in_pieces(squares, x, size=4), x * x)
    assert seen == [(4, 1, False)] * max(1, -(-count // 4)) and torch.get_num_threads() == threads


def test_pieces_run_side_by_side_and_gradients_pass_through() -> None:
    torch.set_num_threads(2)
    meet = threading.Barrier(2, timeout=30)  # breaks if one piece has to wait for the other

    def squares(x: Tensor) -> Tensor:
        meet.wait()
        return x * x

    x = torch.rand(8, 3, requires_grad=True)
    apply_in_pieces(squares, x, size=4).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * x.detach())


def test_a_failure_is_raised_and_the_number_of_threads_is_restored() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("no")

    torch.set_num_threads(2)
    with pytest.raises(ValueError, match="no"):
        apply_in_pieces(fails, torch.rand(9, 3), size=4)
    assert torch.get_num_threads() == 2


def test_pieces_have_one_memory_layout() -> None:
    """With one channel two orders are the same, but their strides are not, and kernels are chosen by strides."""
    seen: list[tuple[int, ...]] = []

    def note(x: Tensor) -> Tensor:
        seen.append(x.stride())
        return x

    for channels in (1, 3):
        plain = torch.rand(8, channels, 5, 5)
        strides = (channels * 25, 1, 5 * channels, channels)
        other = plain.contiguous(memory_format=torch.channels_last).as_strided(plain.shape, strides)
        for x in (plain, other, other[:3]):
            assert torch.equal(apply_in_pieces(note, x, size=4), x)
        assert set(seen) == {(channels * 25, 25, 5, 1)}
        seen.clear()


def test_imagenet_levels_by_hand() -> None:
    """White is (1 - mean) / std; black is -mean / std."""
    levels = ImagenetInput(3, (6, 4))(torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 3, 2))
    for channel, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        assert levels[0, channel].flatten().tolist() == pytest.approx([-mean / std] * 24, rel=1e-5)
        assert levels[1, channel].flatten().tolist() == pytest.approx([(1 - mean) / std] * 24, rel=1e-5)


def test_grey_becomes_three_channels() -> None:
    grey = torch.rand(2, 1, 6, 6) * 2 - 1
    assert torch.equal(ImagenetInput(1, (6, 6))(grey), ImagenetInput(3, (6, 6))(grey.expand(-1, 3, -1, -1)))


def test_a_ramp_stays_a_ramp_and_noise_fades_when_it_shrinks() -> None:
    """Of all values of a, only a = -0.5 keeps straight lines straight."""
    ramp = torch.linspace(-1, 1, 16).expand(1, 3, 16, 16)
    grown = ImagenetInput(3, (32, 48))(ramp)[0, 0]
    steps = grown.diff(dim=1)[:, 6:-6]
    assert torch.allclose(steps, torch.full_like(steps, 2 / 15 / 3 * 0.5 / 0.229), rtol=1e-3)
    assert float(grown.diff(dim=0).abs().max()) < 1e-5
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert float(ImagenetInput(3, (8, 8))(noise).std()) < 0.4 * float(ImagenetInput(3, (64, 64))(noise).std())
