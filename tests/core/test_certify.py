"""The trial before training sees what trains: values, sizes of batches, precision, state and losses that decide."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.core.certify import certify
from dpvision.core.clipping import Automatic, Flat, PerLayer, Public, Style
from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.models import build
from dpvision.private.engine import ClippedSum
from tests.private.engine.oracle import each_loss, verify
from tests.private.engine.small_networks import NETWORKS


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operations that run once per unit warn about it
        yield


class _First(nn.Module):
    """A linear layer behind a function of the batch."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head, self.function = nn.Linear(8, 10), function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(x))


DECIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "range": lambda x: x * 2 - 1 if bool((x >= 0).all()) else x,
    "range by the least": lambda x: x * 2 - 1 if float(x.min()) >= 0 else x,
    "bytes": lambda x: x / 255 if float(x.max()) > 1 else x,
    "zeros": lambda x: x if bool((x != 0).all()) else x + 0.1,
    "not a number": lambda x: x * 0.5 if bool(x.isnan().any()) else x,
    "above 8": lambda x: x - x.mean(0) if len(x) > 8 else x,
    "above 32": lambda x: x - x.mean(0) if len(x) > 32 else x,
    "how many": lambda x: x / len(x),
    "only in float32": lambda x: x - x.mean(0) if x.dtype == torch.float32 else x,
    "a little, only in float32": lambda x: x + 1e-6 * x.nan_to_num().mean() if x.dtype == torch.float32 else x,
}


@pytest.mark.parametrize("what", DECIDES)
def test_a_batch_must_not_decide_what_is_done_with_an_image(what: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsafeLayer):
        verify(_First(DECIDES[what]), each_loss, (8,), 10)


class _Doubles(nn.Module):
    """Gradients twice as large in batches above 8: clipped away, where every one of them is above the bound."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        return y if len(x) <= 8 else y * 2 - y.detach()


@pytest.mark.parametrize("style", [Flat(1.0), Flat(1e-3), PerLayer(1e-3), Automatic(1e-3)])
def test_what_only_scales_gradients_is_found_at_any_bound(style: Style) -> None:
    torch.manual_seed(0)
    for views in ((1,), (2, 3, 1)):
        with pytest.raises(UnsafeLayer):
            certify(_Doubles(), each_loss, (8,), 10, engine=ClippedSum, style=style, views=views)


class _Keeps(nn.Module):
    """State in an attribute that torch knows nothing of: of the first batch, of the last one, or a count."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.head, self.what, self.kept = nn.Linear(8, 10), what, None

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "count":
            self.kept = (self.kept or 0) + 1
            return self.head(x) * (1 + 0.1 * self.kept)
        if self.kept is None or self.what == "last batch":
            before, self.kept = self.kept, x.detach().as_subclass(Tensor).nan_to_num().mean(0).to(torch.float64)
            if self.what == "last batch" and before is not None:
                return self.head(x - before.to(x.dtype))
            return self.head(x)
        return self.head(x - self.kept.to(x.dtype))


@pytest.mark.parametrize("what", ["first batch", "last batch", "count"])
def test_state_between_calls_is_refused(what: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsafeLayer):
        verify(_Keeps(what), each_loss, (8,), 10)


def test_a_loss_with_weights_in_it_is_refused() -> None:
    model = nn.Linear(8, 10)
    with pytest.raises(ConfigError, match="besides the model's outputs"):
        verify(model, lambda o, t: each_loss(o, t) + model.weight.square().sum(), (8,), 10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.compile(nn.Linear(8, 10), backend="eager"), "compiled"),
        (lambda: torch.jit.script(nn.Linear(8, 10)), "torch.jit"),
        (lambda: nn.Sequential(nn.DataParallel(nn.Linear(8, 10))), r"0 \(DataParallel\).*\.module"),
        (lambda: nn.LazyLinear(10), "without a shape"),
        (lambda: _nan(nn.Linear(8, 10)), "weight is not finite"),
        (lambda: _Returns(lambda y: (y, y)), "a tuple and not a tensor"),
        (lambda: _Returns(lambda y: {"logits": y}), "a dict and not a tensor"),
        (lambda: _Returns(lambda y: y.detach().numpy()), "a ndarray and not a tensor"),
        (lambda: _weight_norm(nn.Linear(8, 10)), "failed on random images|copied"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_is_one_clear_error(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        verify(make(), each_loss, (8,), 10)


def test_no_classes_are_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="classes is 0"):
        verify(nn.Linear(8, 0), each_loss, (8,), 0)


def _nan(model: nn.Linear) -> nn.Module:
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    return model


def _weight_norm(model: nn.Module) -> nn.Module:
    model = torch.nn.utils.weight_norm(model)
    model(torch.zeros(1, 8))
    return model


class _Returns(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.head, self.function = nn.Linear(8, 10), function

    def forward(self, x: Tensor) -> object:
        return self.function(self.head(x))


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob


def test_drop_path_is_refused_by_name_where_it_draws() -> None:
    with pytest.raises(UnsafeLayer, match=r"0 \(DropPath\)"):
        ClippedSum(nn.Sequential(DropPath(0.1), nn.Linear(8, 10)), each_loss, clip=1.0)
    ClippedSum(nn.Sequential(DropPath(0.0), nn.Linear(8, 10)), each_loss, clip=1.0)


class _TokensFirst(nn.Module):
    """(tokens, images, numbers), where the number of tokens is a multiple of the number of images."""

    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        self.inner, self.head, self.flat = nn.Linear(3, 3), nn.Linear(3, 10), flat

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unflatten(1, (8, 3)).transpose(0, 1)
        if self.flat:
            tokens = torch.tanh(self.inner(tokens.reshape(-1, 3))).view(8, -1, 3)
        else:
            tokens = torch.tanh(self.inner(tokens))
        return self.head(tokens.transpose(0, 1).mean(1))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_images_along_another_axis_are_refused_by_the_sum_itself(count: int, flat: bool) -> None:
    engine = ClippedSum(_TokensFirst(flat=flat), each_loss, clip=1.0)
    with pytest.raises(UnsafeLayer, match="first axis"):
        engine(torch.randn(count, 24), torch.zeros(count, dtype=torch.int64), [1] * count)


def test_bits_that_depend_on_place_are_refused_unless_units_pass_alone() -> None:
    """A function that the rules do not know, and that rounds by position."""
    model = _First(lambda x: _by_place(x))
    with pytest.raises(UnsafeLayer, match="physical=1"):
        verify(model, each_loss, (8,), 10)
    verify(model, each_loss, (8,), 10, physical=1)


def _by_place(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        return x
    last = torch.arange(len(x)).unsqueeze(1) == len(x) - 1
    return torch.where(last & (len(x) > 1), x * (1 + 2.0**-22), x)


def test_every_small_network_passes() -> None:
    for name, (make, shape) in NETWORKS.items():
        torch.manual_seed(0)
        model = make()
        before = copy.deepcopy(model.state_dict())
        try:
            verify(model, each_loss, shape, 10)
        except (UnsafeLayer, ConfigError) as error:
            raise AssertionError(name) from error
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", ["dpmix-cnn", "tanh-cnn", "vit-tiny", "wrn-10-1", "scatter-linear"])
def test_networks_by_name_pass(name: str) -> None:
    verify(build(name, (3, 32, 32), classes=10, seed=0), each_loss, (3, 32, 32), 10)


@pytest.mark.parametrize("physical", [1, 64])
def test_the_cut_is_part_of_the_trial(physical: int) -> None:
    """What mixes only above 40 images is found if more than that pass at a time."""
    model = _First(lambda x: x - x.mean(0) if len(x) > 40 else x)
    if physical == 64:
        with pytest.raises(UnsafeLayer):
            verify(model, each_loss, (8,), 10, physical=physical)
    verify(_First(torch.tanh), each_loss, (8,), 10, physical=physical)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binary": lambda o, t: F.binary_cross_entropy_with_logits(o, F.one_hot(t, 10).to(o.dtype), reduction="none").sum(1),
    "squares": lambda o, t: (o - F.one_hot(t, 10)).pow(2).mean(1),
    "smoothed": lambda o, t: F.cross_entropy(o, t, reduction="none", label_smoothing=0.1),
    "softplus": lambda o, t: F.softplus(1 - o.gather(1, t.unsqueeze(1)).squeeze(1)),
    "focal": lambda o, t: (1 - torch.exp(-each_loss(o, t))) ** 1.5 * each_loss(o, t),
}


@pytest.mark.parametrize("what", LOSSES)
def test_losses_of_any_kind_round_alike_in_any_place(what: str) -> None:
    torch.manual_seed(0)
    verify(nn.Linear(13, 10), LOSSES[what], (13,), 10)


class _Wrong:
    """An engine that gets one thing wrong: what the certificate is for."""

    def __init__(self, what: str, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], *, clip: Style) -> None:
        bound = clip.sensitivity
        self._what = what
        wrong = {"clips at another bound": Flat(1.1 * bound), "does not clip": Flat(1e9)}.get(what, clip)
        self._inner = ClippedSum(model, loss, clip=wrong)
        self.sensitivity, self.rounding = bound, 0.0

    @property
    def size(self) -> int:
        return self._inner.size

    @property
    def pass_images(self) -> int:
        return self._inner.pass_images

    def inner_products(
        self, images: Tensor, targets: Tensor, views: Sequence[int], direction: Tensor, public: Public | None = None
    ) -> Tensor:
        return self._inner.inner_products(images, targets, views, direction, public)

    def sum(self, batches: Iterable[tuple[Tensor, Tensor, Sequence[int]]], public: Public | None = None) -> Tensor:
        batches = list(batches)
        if self._what == "clips each view":
            batches = [(x, y, [1] * len(x)) for x, y, _ in batches]
        if self._what == "leaves the shift out":
            public = None
        total = self._inner.sum(batches, public)
        if self._what == "leaves a bias out":
            total[-3:] = 0
        if self._what == "divides by the batch":
            total = total / sum(len(views) for _, _, views in batches)
        if self._what == "adds a unit twice":
            total = total + self._inner.sum([(x[: v[0]], y[: v[0]], v[:1]) for x, y, v in batches], public)
        if self._what == "lets NaN through" and any(bool(x.isnan().any()) for x, _, _ in batches):
            total = total + 1e-3
        return total


WRONG = (
    "clips at another bound",
    "does not clip",
    "clips each view",
    "leaves the shift out",
    "leaves a bias out",
    "divides by the batch",
    "adds a unit twice",
    "lets NaN through",
)


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("style", [Flat(1.0), Flat(0.01), PerLayer(0.5)])
def test_an_engine_that_does_not_sum_as_specified_is_refused(what: str, style: Style) -> None:
    """Raw gradients are right in all of these: it is norms, factors and sums that are wrong."""
    if what == "clips at another bound" and not isinstance(style, Flat):
        return
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
    certify(model, each_loss, (8,), 3, engine=ClippedSum, style=style, public=("shift",))
    with pytest.raises(UnsafeLayer):
        certify(model, each_loss, (8,), 3, engine=partial(_Wrong, what), style=style, public=("shift",))


@pytest.mark.parametrize("public", [(), ("scale",), ("shift",), ("scale", "shift")])
@pytest.mark.parametrize("style", [Flat(1.0), Automatic(1.0), PerLayer(1.0)])
@pytest.mark.parametrize(("one_view", "views"), [(True, (1,)), (False, (1,)), (False, (4,)), (False, (2, 4, 6))])
def test_the_engine_passes_in_every_configuration(
    public: tuple[str, ...], style: Style, one_view: bool, views: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))
    model[0].bias.requires_grad_(False)
    engine = partial(ClippedSum, one_view=one_view, physical=8)
    certify(model, each_loss, (40,), 3, engine=engine, style=style, views=views, public=public)
