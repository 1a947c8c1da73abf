"""Bugs that were found in differential privacy software, planted into ours: what, from where, and who catches it.

`number` is the kind of bug (one may be planted in several places), `source` where it was published, and `killers` are
checks of suite.py that raise an alarm; others may too (`make test-slow` prints the table).
"""

from __future__ import annotations

from tests.system.planted.bug import planted as _bug
from tests.system.planted.bugs_of_devices import BUGS_OF_DEVICES
from tests.system.planted.bugs_of_runs import BUGS_OF_RUNS

GATE = "dpvision.core.gate"
TASKS = "dpvision.models.tasks"
STEPS, SUM, PASSES = (
    "dpvision.private.training.private_sum",
    "dpvision.private.engine.clipped_sum",
    "dpvision.private.engine.passes",
)
STYLES, SAMPLING, NOISE = "dpvision.core.clipping", "dpvision.core.sampling", "dpvision.core.noise"
STREAMS, LEDGER, ACCOUNT, ACCOUNTANT = (
    "dpvision.core.keys",
    "dpvision.core.ledger",
    "dpvision.core.account",
    "dpvision.core.accountant",
)
ROWS, MIXTURES, RELEASES = (
    "dpvision.core.rows",
    "dpvision.private.statistics.mixtures",
    "dpvision.core.sampling",
)
CERTIFY = "dpvision.core.certify"
QUICK, CALIBRATE = "dpvision.settings.quick", "dpvision.settings.calibrate"

# Texts that several bugs exchange.
SIGMA = "return noise.add_noise(bounded.total, stream, sensitivity=bounded.sensitivity, sigma=self.sigma, **ahead)"
NOISY = "return torch.from_numpy(self._gate.noisy(BoundedSum(total.numpy(), self._clipped_sum.sensitivity), number))"
DIVISOR = "return self._team.from_first(noisy) / self._batch"
FACTORS = "return (self.bound / norms.clamp(min=self.bound)).expand_as(squares)"
EVENT = "return PoissonGaussian(self.rate, sigma, self.steps - first)"
COINS = "return np.flatnonzero(stream.words(units) < threshold)"
DRAWN = """rng = self.stream("sampling", step, rank=rank)
        return rank + ranks * self.sampler.draw(len(range(rank, units, ranks)), rng)"""
BITS = "words = stream.words(4 * half).reshape(4, half)"


BUGS = (
    _bug(
        1, "noise too small by the batch size", "Tramer et al., arXiv 2202.12219",
        (GATE, SIGMA, SIGMA.replace("self.sigma", "self.sigma / getattr(self.sampler, 'batch', 1)")), by="replay dp-sgd",
    ),
    _bug(
        2, "no noise in every third step", "opacus PR #330, issue #313",
        (STEPS, "if total is None else self._add_noise(total, number)",
         "if total is None else total if number % 3 == 2 else self._add_noise(total, number)"), by="replay dp-sgd",
    ),
    _bug(
        3, "clipped at 1 whatever was asked for", "opacus PR #664",
        (STYLES, FACTORS, "return (1.0 / norms.clamp(min=1.0)).expand_as(squares)"), by="replay dp-sgd",
    ),
    _bug(
        4, "biases left out of the norm", "opacus PR #751",
        (STYLES, "        norms = squares.sum(1, keepdim=True).sqrt()\n        " + FACTORS,
         "        counted = [i for i, name in enumerate(names) if not name.endswith('bias')]\n"
         "        norms = squares[:, counted].sum(1, keepdim=True).sqrt()\n        " + FACTORS), by="replay dp-sgd",
    ),
    _bug(
        5, "norms of one kind of layer wrong in micro-batches", "tensorflow/privacy 66d05a2",
        ("dpvision.private.engine.slots", "return norms.double().square_().sum(1)\n",
         "return norms.double().square_().sum(1) / (units if len(self.shape) == 1 else 1)\n"), by="replay dp-sgd",
    ),
    _bug(
        6, "gradients of earlier micro-batches are added again", "opacus PR #707",
        (PASSES, "slots.reset()", "pass"), by="replay dp-sgd",
    ),
    _bug(
        7, "the mean of a micro-batch is clipped", "tensorflow/privacy #620",
        (SUM, "yield Group(images[rows], targets[rows], views[first:last], shape, list(range(first, last)))",
         "yield Group(images[rows], targets[rows], [sum(views[first:last])], shape, [first])"), by="replay dp-sgd",
    ),
    _bug(
        8, "accounted with another sigma than the noise has", "opacus PR #807",
        (SAMPLING, EVENT, "return PoissonGaussian(self.rate, sigma * 1.2, self.steps - first)"), by="replay dp-sgd",
    ),
    _bug(
        9, "rate of one over the number of batches", "opacus #813, PR #815",
        (SAMPLING, EVENT, "return PoissonGaussian(1 / -(-self.n // self.batch), sigma, self.steps - first)"),
        by="sampler of training",
    ),
    _bug(
        10, "batches of a fixed size", "Chua et al., arXiv 2403.17673; private-transformers #7",
        (SAMPLING, COINS, "return np.sort(np.argsort(stream.words(units))[: self.batch])"), by="sampler of training",
    ),
    _bug(
        10, "shuffled epochs", "Annamalai et al., NDSS 2026; opacus PR #128",
        (GATE, DRAWN, """epoch, place = divmod(step, max(1, units // self.sampler.batch))
        order = np.argsort(self.stream("sampling", epoch).words(units))
        return np.sort(order[place * self.sampler.batch : (place + 1) * self.sampler.batch])"""),
        by="sampler of training",
    ),
    _bug(
        11, "draws of classes accounted as if they were secret", "NeuroMixGDP-HS; Bun et al., arXiv 2007.12674",
        (RELEASES, "return ClassScheduled(sigma, self.rates, tuple(int(count) for count in self.table[first:].sum(0)))",
         "seen = zip(self.rates, self.table.mean(0), strict=True)\n"
         "        return ClassScheduled(sigma, tuple(float(r * p) for r, p in seen), (self.rows,) * len(self.rates))"),
        by="sampler of releases",
    ),
    _bug(
        11, "classes drawn first, then records, accounted as Poisson", "NeuroMixGDP exp_simclr_hs.py",
        (RELEASES, "drawn = bernoulli(stream, len(present) * len(rows), rate=self.rate)\n"
         "        row, record = np.divmod(drawn, max(len(present), 1))\n        return RowMembers(present[record]",
         "drawn = bernoulli(stream, len(present) * len(rows), rate=min(1.0, 2 * self.rate))\n"
         "        row, record = np.divmod(drawn, max(len(present), 1))\n"
         "        about = stream.words(len(rows) * (int(labels.max(initial=0)) + 1)).reshape(len(rows), -1) >> np.uint64(63)\n"
         "        kept = about[row, labels[present[record]]] == 1\n        row, record = row[kept], record[kept]\n"
         "        return RowMembers(present[record]"), by="sampler of releases",
    ),
    _bug(
        12, "rows in which nobody is are left out", "NeuroMixGDP-HS, MC = MC[sum > 0]",
        (MIXTURES, 'total = sum_chosen(z, chosen, self._shares(len(chosen.members), gate.stream("weights", number)))',
         'total = sum_chosen(z, chosen, self._shares(len(chosen.members), gate.stream("weights", number)))[np.diff(chosen.starts) > 0]'),
        by="replay releases",
    ),
    _bug(
        12, "drawn again where nobody was drawn", "opacus #161",
        (SAMPLING, COINS, "for _ in range(9):\n            if len(found := np.flatnonzero(stream.words(units) < threshold)):\n"
         "                break\n        return found"), by="sampler of training",
    ),
    _bug(
        13, "an empty batch is no step", "opacus #612, PR #164, #631, #806",
        (STEPS, "        share = self._clipped_sum.sum(", "        if not len(drawn):\n"
         "            return torch.zeros(sum(self._clipped_sum._sizes), dtype=torch.float64)\n"
         "        share = self._clipped_sum.sum("), by="replay dp-sgd",
    ),
    _bug(
        14, "divided by the data set's size times the rate", "opacus #571, #819; arXiv 2605.15648",
        (STEPS, DIVISOR, "return self._team.from_first(noisy) / max(1, int(units * self._gate.sampler.rate))"),
        by="replay dp-sgd",
    ),
    _bug(
        15, "divided by the true batch size", "opacus #420; arXiv 2605.15648",
        (STEPS, DIVISOR, "return self._team.from_first(noisy) / max(1, len(drawn))"),
        by="replay dp-sgd",
    ),
    _bug(
        16, "a gradient that is no number is summed", "Cebere et al., arXiv 2602.17454",
        (SUM, "bad = ~torch.isfinite(norms)", "bad = torch.zeros_like(norms, dtype=torch.bool)"), by="replay dp-sgd",
    ),
    _bug(
        16, "a row that is no number is summed", "Cebere et al., arXiv 2602.17454 (diffprivlib)",
        (ROWS, "finite = np.asarray(np.isfinite(x).all(axis=1))", "finite = np.ones(len(x), dtype=np.bool_)"),
        (ROWS, "finite = finite & np.isfinite(x).all(axis=1)", "finite = finite"), by="replay heads",
    ),
    _bug(
        17, "classes taken from the data", "diffprivlib, dpmm; arXiv 2602.17454",
        (ROWS, "numbers, -1), classes, units)", "numbers, -1), int(numbers.max(initial=0)) + 1, units)"), by="replay heads",
    ),
    _bug(
        18, "the number of records used as public", "Synthcity; arXiv 2602.17454",
        ("dpvision.private.statistics.head", "n, read_off = public_count(n, rows)",
         "n, read_off = max(1, len(rows.x)), ()"), by="replay heads",
    ),
    _bug(
        19, "sensitivity 0 for one block: no noise there", "diffprivlib #104, PR #110",
        (NOISE, "    return whole[:count]", "    whole[max(count - 4, 0) : count] = 0.0\n    return whole[:count]"), by="noise",
    ),
    _bug(
        19, "sensitivity without one of two blocks", "diffprivlib #105",
        ("dpvision.private.statistics.closed_form", "return BoundedSum(total, math.sqrt(share + (1 - share) * (1 - 1.0 / k)))",
         "return BoundedSum(total, math.sqrt(share))"), by="replay heads",
    ),
    _bug(
        20, "clipped, and the raw value used", "SmartNoise #622",
        (SUM, "slot.add(factors[:, column], bad)", "slot.add(torch.ones_like(factors[:, column]), bad)"),
        by="replay dp-sgd",
    ),
    _bug(
        21, "two equal releases counted as one", "SmartNoise #621",
        (ACCOUNT, "return self._of(self.groups)",
         "return self._of(tuple({group.event: group for group in self.groups}.values()))"), by="ledger",
    ),
    _bug(
        21, "one slice of the budget for all releases", "diffprivlib #104",
        (GATE, "            self._left -= wanted\n", ""), by="replay heads",
    ),
    _bug(
        22, "the clipping bound is the median norm", "Handcrafted-DP, NeuroMixGDP dp_utils.py",
        (STYLES, FACTORS, "return (norms.median() / norms.clamp(min=norms.median())).expand_as(squares)"),
        by="replay dp-sgd",
    ),
    _bug(
        23, "normalised by statistics of the private images", "NeuroMixGDP _mean.npy; Handcrafted-DP",
        ("dpvision.views.eight_bit", "return (images.to(dtype) / scale - 0.5) / 0.5",
         "return (images.to(dtype) - images.to(dtype).mean()) / (images.to(dtype).std() + 1e-6)"), by="replay dp-sgd",
    ),
    _bug(
        24, "the central limit as accountant", "Gopi et al., arXiv 2106.02848; opacus #384",
        (ACCOUNTANT, "return float(_loss_distribution(kind).get_epsilon_for_delta(provable)) if provable > 0 else math.inf",
         "from dpvision.settings import gdp\n\n"
         "    squares = [n * q**2 * math.expm1(s**-2) if q < 1 else n / s**2 for q, s, n in kind]\n"
         "    return gdp.gaussian_epsilon(math.sqrt(sum(squares)), delta)"), by="accountant",
    ),
    _bug(
        25, "the search for sigma ends above the target", "opacus #346, PR #348; NeuroMixGDP",
        (CALIBRATE, "return quick.epsilon(Composed((*before, event)), budget.delta) - budget.epsilon",
         "return quick.epsilon(Composed((*before, event)), budget.delta) - budget.epsilon * 1.01"),
        (CALIBRATE, "return accountant.epsilon(Composed((*before, event)), budget.delta) <= budget.epsilon",
         "return accountant.epsilon(Composed((*before, event)), budget.delta) <= budget.epsilon * 1.01"),
        by="accountant",
    ),
    _bug(
        26, "tails cut off and forgotten", "google/differential-privacy 6f7deb3; tensorflow/privacy #166",
        (ACCOUNTANT, "STEP_TAIL_SIGMAS = 10.5", "STEP_TAIL_SIGMAS = 2.5"),
        (QUICK, "return _Losses(mass, low, float(p_mass[-1]))", "return _Losses(mass, low, 0.0)"), by="accountant",
    ),
    _bug(
        26, "losses rounded down", "google/differential-privacy 6f7deb3 (analogue)",
        (ACCOUNTANT, "use_connect_dots=not optimistic", "use_connect_dots=False"),
        (ACCOUNTANT, "pessimistic_estimate=not optimistic", "pessimistic_estimate=False"), by="accountant",
    ),
    _bug(
        27, "asking for epsilon forgets the history", "opacus #535",
        (ACCOUNT, "return accountant.epsilon(self.total, self.budget.delta)",
         "found = accountant.epsilon(self.total, self.budget.delta)\n"
         '        object.__setattr__(self, "groups", ())\n        return found'), by="ledger",
    ),
    _bug(
        28, "a resumed run forgets what was done before", "Opacus save_checkpoint",
        ("dpvision.private.training.state", "adaptive.compose((*state.path, here), delta)", "adaptive.compose((here,), delta)"),
        by="resume",
    ),
    _bug(
        28, "each run has the whole budget", "Opacus save_checkpoint (analogue)",
        (LEDGER, "            account.require_within_budget(after.total, event)\n",
         "            alone = replace(account, groups=())\n"
         "            alone.require_within_budget(alone.with_event(event).total, event)\n"), by="ledger",
    ),
    _bug(
        29, "a seed of 17 bits", "NeuroMixGDP, random.randint(1, 100000)",
        (STREAMS, "return Key(os.urandom(KEY_BYTES), private=True)",
         'seed = b"%d" % (int.from_bytes(os.urandom(8)) % 100_000)\n'
         "        return Key(hashlib.blake2b(seed, digest_size=KEY_BYTES).digest(), private=True)"), by="keys",
    ),
    _bug(
        29, "a seed that is written in the code", "unseeded torch.Generator(), CWE-321",
        (NOISE, BITS, "words = np.random.default_rng(0).integers(0, 1 << 64, (4, half), dtype=np.uint64)"),
        by="static, noise",
    ),
    _bug(
        30, "the same noise in every step", "noise reused by step, or after a resume or a fork",
        (GATE, 'return self._key.stream("noise", step=number, branch=self._branch)',
         'return self._key.stream("noise", step=0, branch=self._branch)'), by="replay dp-sgd",
    ),
    _bug(
        30, "streams that do not know their step", "noise reused by step, or after a resume or a fork",
        (STREAMS, "(purpose, str(step), str(rank), branch)", "(purpose, str(rank), branch)"), by="noise",
    ),
    _bug(
        30, "the same noise after a changed resume", "noise reused by step, or after a resume or a fork",
        (STREAMS, "(purpose, str(step), str(rank), branch)", "(purpose, str(step), str(rank))"), by="noise",
    ),
    _bug(
        31, "sigma divided by the root of the ranks", "opacus 95fdb35, PR #347",
        (STEPS, NOISY, "self._gate.sigma /= self._team.ranks ** (0.5 * (number == 0))\n        " + NOISY), by="ranks",
    ),
    _bug(
        31, "each rank draws from all units", "opacus #662",
        (GATE, DRAWN, DRAWN.replace("rank + ranks * self.sampler.draw(len(range(rank, units, ranks)), rng)",
                                    "self.sampler.draw(units, rng)")), by="ranks",
    ),
    _bug(
        32, "sums are not put on the grid", "opacus #616, OpenDP #414, SmartNoise SDK #461",
        (NOISE, "        np.rint(part, out=part)\n", ""), by="noise",
    ),
    _bug(
        32, "noise of half precision", "diffprivlib #94; Mironov 2012",
        (NOISE, "    return out.reshape(-1)\n", "    out = out.astype(np.float16).astype(np.float64)\n    return out.reshape(-1)\n"),
        by="noise",
    ),
    _bug(
        32, "a radius of 53 bits: pairs of far numbers lie on circles", "Box-Muller from one uniform",
        (NOISE, "    rest = low.astype(np.float64) * 2.0**-64",
         "    high, rest = high >> np.uint64(11) << np.uint64(11), np.full(len(low), 2.0**10)"),
        (NOISE, "deviation * FLOAT_ERROR)", "0.0)"), by="pairs of noise",
    ),
    _bug(
        32, "numbers near a middle are rounded as float64 has them", "Mironov 2012 (analogue)",
        (NOISE, "deviation * FLOAT_ERROR)", "0.0)"), by="pairs of noise",
    ),
    _bug(
        21, "runs chosen after results compose as if they were planned", "Regehr et al. 2026, arXiv 2602.15815",
        ("dpvision.core.adaptive", "    if not chosen:\n        return first",
         "    if True:\n        return Composed((first, *(x.event for x in chosen)))"), by="chosen later",
    ),
    _bug(
        21, "the leaks of later runs are not in delta", "privacy filters",
        ("dpvision.core.adaptive", "max(reserve(delta), math.fsum(x.leak for x in chosen))",
         "math.fsum(x.leak for x in chosen)"), by="chosen later",
    ),
    _bug(
        21, "a later run is dominated at its own epsilon only", "privacy filters",
        ("dpvision.core.adaptive", "for e, d in zip(grid[1:], profile[:-1], strict=True) if d > 0]",
         "for e, d in zip(grid[1:], profile[:-1], strict=True) if d > 0][-1:]"), by="chosen later",
    ),
    _bug(
        28, "a run that was stopped states the steps so far", "odometers",
        ("dpvision.private.training.state", "return PoissonSampler(config.batch, config.n, config.steps).event(config.sigma, "
         "first=state.first)", "return PoissonSampler(config.batch, config.n, state.step).event(config.sigma, "
         "first=state.first)"), by="resume",
    ),
    _bug(
        33, "each view is clipped by itself", "De et al., arXiv 2204.13650, read wrongly",
        ("dpvision.private.training.private_sum", "return images, targets, [count * views.count for count in counts]",
         "return images, targets, [1] * len(images)"), by="replay views",
    ),
    _bug(
        34, "mixed across the images of a batch", "mixup as it is used without privacy",
        ("dpvision.views.views", "self._mix(take_members(out, first), take_members(out, second), weight, rng)",
         "self._mix(take_members(out, first), take_members(out, second).roll(1, 0), weight, rng)"), by="replay views",
    ),
    _bug(
        35, "images scaled by the largest of the batch", "opacus #308",
        (PASSES, "inputs = align(self.set_layout(images)).as_subclass(Data)",
         "inputs = self.set_layout(images / images.abs().amax().clamp(min=1.0)).as_subclass(Data)"), by="replay dp-sgd",
    ),
    _bug(
        35, "batch normalisation is let through", "opacus #308",
        ("dpvision.private.engine.refusals", "MIXES_IMAGES = (nn.modules.batchnorm._BatchNorm,)", "MIXES_IMAGES = ()"), by="unsafe layers",
    ),
    _bug(
        35, "the trial of a model sees no difference", "opacus #308",
        (CERTIFY, "        if not off <= TOLERANCE * size + rounding:", "        if off > 1e300:"), (CERTIFY, "        trial.units_are_apart()\n", ""),
        by="unsafe layers",
    ),
    _bug(
        36, "each layer clipped to the bound of all", "per-layer clipping, bound used as if global",
        (STYLES, "return dict.fromkeys(names, self._bound / math.sqrt(len(layers)))",
         "return dict.fromkeys(names, self._bound)"), by="replay dp-sgd",
    ),
    _bug(
        37, "labels longer than their noise is scaled to", "NeuroMixGDP with Cy < 1",
        (MIXTURES, "self.b = math.sqrt(1 - self.a**2)", "self.b = 1.0"), by="replay releases",
    ),
    _bug(
        38, "the auditor takes no evidence for evidence", "jax_privacy aab3e1c",
        ("dpvision.audit.bounds", "low, mu, high = (max(0.0, x) for x in (mu - reach, mu, mu + reach))",
         "low, mu, high = (abs(x) for x in (mu - reach, mu, mu + reach))"), by="auditor",
    ),
    _bug(
        39, "the charge is not on the disk when noise is drawn", "crash safety; Tumult keeps budgets in memory",
        (LEDGER, "                os.fsync(descriptor)\n", ""), by="ledger",
    ),
    _bug(
        61, "a person's rows added up instead of averaged", "per-example clipping used for user-level privacy",
        (ROWS, "return np.where(self.counted, 1.0 / np.maximum(rows, 1)[self.persons], 0.0)",
         "return np.where(self.counted, 1.0, 0.0)"), by="replay rows of persons",
    ),
    _bug(
        61, "images mixed where persons are charged", "per-example sampling used for user-level privacy",
        (MIXTURES, "        persons = rows.persons\n", "        persons = None\n"), by="replay rows of persons",
    ),
    _bug(
        61, "n counted in images where units are persons", "user-level privacy with the record count",
        (ROWS, "return len(self.x) if self.persons is None else int(self.persons.max(initial=-1)) + 1", "return len(self.x)"),
        by="persons counted",
    ),
    _bug(
        62, "logits adjusted by private class counts", "logit adjustment as it is used without privacy",
        ("dpvision.private.statistics.row_sums", "counts = floor_counts(add_noise(class_counts(rows)), n=n)",
         "add_noise(class_counts(rows))\n    counts = floor_counts(class_counts(rows).total, n=n)"), by="replay heads",
    ),
    _bug(
        63, "losses divided by the number of known labels in the batch", "the mean of a masked loss over a batch",
        (TASKS, "torch.zeros_like(losses)).sum(1)", "torch.zeros_like(losses)).sum(1) / (targets >= 0).sum().clamp(min=1)"),
        by="units apart: training",
    ),
    _bug(
        63, "errors of a head divided by the number of known labels", "the mean of a masked loss over a batch",
        ("dpvision.private.statistics.logistic", "return np.where(y >= 0, expit(scores) - y, 0.0)",
         "return np.where(y >= 0, expit(scores) - y, 0.0) / max(1, (y >= 0).sum())"), by="units apart: rows",
    ),
    *BUGS_OF_RUNS,
    *BUGS_OF_DEVICES,
)  # fmt: skip
BY_NAME = {bug.name: bug for bug in BUGS}
