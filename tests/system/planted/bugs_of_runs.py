"""Bugs that only whole runs show: in what a run reads, plans, draws, stores and prints. Numbered as in bugs.py."""

from __future__ import annotations

from tests.system.planted.bug import planted as _bug

TRAIN, LOOP, PREPARE, NETWORK, STEPS, CONFIG, COMPUTED = (
    "dpvision.private.training.train",
    "dpvision.private.training.loop",
    "dpvision.private.training.prepare",
    "dpvision.private.training.network",
    "dpvision.private.training.private_sum",
    "dpvision.settings.training",
    "dpvision.settings.plan",
)
GATE, STATE = "dpvision.core.gate", "dpvision.private.training.state"
MIXTURES, LINKS = "dpvision.private.statistics.mixtures", "dpvision.private.training.links"
TUNE, ASSISTANT, ENCODERS, MAKING = (
    "dpvision.private.training.tune",
    "dpvision.private.training.loop",
    "dpvision.private.features.encoders",
    "dpvision.private.statistics.release",
)

WHICH = "which = secrets.randbelow(len(prepared.candidates))"
HOW_MANY = "range(1, prepared.stopping.draw() + 1)"
PARTS = "parts = [images_of(int(i)) for i in drawn]"
N = "    n = n if config.n is None else config.n\n"
WITH_TEST = """if data.test is not None:
        both = [np.concatenate([getattr(s, k) for s in (data.train, data.test)]) for k in ("images", "labels")]
        persons = None if data.train.persons is None else np.concatenate([data.train.persons, data.test.persons])
        data = type(data)(data.name, data.classes, Split(*both, persons), data.val, data.test, data.inferred)
    """

BUGS_OF_RUNS = (
    _bug(
        40, "classes weighted by their private frequency", "class-balanced losses as they are used without privacy",
        (LOOP, "    clipped_sum = phase.clipped_sum(tally)\n    private_sum",
         "    loss, counts = phase.loss, torch.bincount(torch.tensor(prepared.data.train.labels))\n"
         "    phase = replace(phase, loss=lambda outputs, targets: loss(outputs, targets) * (1 / counts)[targets])\n"
         "    clipped_sum = phase.clipped_sum(tally)\n    private_sum"),
        by="replay whole runs, units apart: training",
    ),
    _bug(
        40, "logits adjusted by private class shares", "logit adjustment as it is used without privacy",
        (LOOP, "        phase.load(state.weights)\n",
         "        phase.load(state.weights)\n"
         "        if config.objective == 'balanced':\n"
         "            counts = torch.bincount(torch.tensor(prepared.data.train.labels), minlength=len(prepared.data.classes))\n"
         "            model.class_shares.data.copy_(counts / counts.sum())\n"
         "            phase._all[0].data.copy_(counts / counts.sum())\n"),
        by="replay whole runs, any data, units apart: training",
    ),
    _bug(
        41, "a person's images cut to the median of those drawn", "group bounds computed from private group sizes",
        (STEPS, PARTS, PARTS + "\n            parts = [p[: int(np.median([len(q) for q in parts]))] for p in parts]"),
        by="fetched, replay persons, replay whole runs, units apart: training",
    ),
    _bug(
        41, "a person's images cut to the mean of all persons", "group bounds computed from private group sizes",
        (STEPS, PARTS, PARTS + "\n            parts = [p[: max(1, len(split) // count_units(split, unit))] for p in parts]"),
        by="fetched, units apart: training",
    ),
    _bug(
        41, "a person with many images passed on in pieces", "microbatches as units: tensorflow/privacy #620 (analogue)",
        (STEPS, "rows, counts = np.concatenate(parts), [len(p) for p in parts]",
         "rows = np.concatenate(parts)\n            "
         "counts = [min(64, len(p) - start) for p in parts for start in range(0, len(p), 64)]"),
        by="fetched",
    ),
    _bug(
        42, "assistance computed from private images", "public-assisted training without public data",
        (ASSISTANT, "public = prepared.public.images", "public = prepared.data.train"),
        by="replay assisted runs, units apart: training",
    ),
    _bug(
        43, "candidates in turn instead of at random", "grid search charged as a random one; Papernot and Steinke 2022",
        (TUNE, WHICH, "which = (number - 1) % len(prepared.candidates)"), by="law of tuning",
    ),
    _bug(
        43, "the first candidate more often than the others", "grid search charged as a random one",
        (TUNE, WHICH, WHICH + " if number > 1 else 0"), by="law of tuning",
    ),
    _bug(
        43, "a fixed number of trials", "Papernot and Steinke 2022: best of a fixed number costs more",
        (TUNE, HOW_MANY, "range(1, round(prepared.stopping.mean) + 1)"), by="law of tuning",
    ),
    _bug(
        43, "the number of trials from another distribution with the same mean", "Papernot and Steinke 2022",
        (TUNE, HOW_MANY, "range(1, stopping.stopping(prepared.stopping.mean, 1.0 - prepared.stopping.eta).draw() + 1)"),
        by="law of tuning",
    ),
    _bug(
        43, "at least as many trials as candidates", "Papernot and Steinke 2022: more trials cost more",
        (TUNE, HOW_MANY, "range(1, max(prepared.stopping.draw(), len(prepared.candidates)) + 1)"), by="law of tuning",
    ),
    _bug(
        43, "trials continue until one is good", "optional stopping; Liu and Talwar 2019",
        (TUNE, "        watch(number)\n", "        watch(number)\n        if score >= 3:\n            break\n"),
        by="law of tuning",
    ),
    _bug(
        44, "steps from the true number of units although it is declared", "Synthcity; arXiv 2602.17454 (analogue)",
        (COMPUTED, N, "    true = n\n" + N),
        (COMPUTED, "steps = default_steps(n, batch) if config", "steps = default_steps(true, batch) if config"), by="declared",
    ),
    _bug(
        44, "the batch from the true number of units although it is declared", "opacus #571 (analogue)",
        (COMPUTED, N, "    true = n\n" + N),
        (COMPUTED, "default_batch(n) if config.batch is None", "min(n, default_batch(true)) if config.batch is None"),
        by="declared",
    ),
    _bug(
        44, "the rank of a release from the true number of images", "Synthcity; arXiv 2602.17454 (analogue)",
        ("dpvision.settings.release", "        n = self.public_number(n)", "        true = n\n        n = self.public_number(n)"),
        ("dpvision.settings.release", "rank = self._rank(n, channels) if", "rank = self._rank(true, channels) if"), by="declared",
    ),
    _bug(
        44, "a covariance of lda from the true number of rows", "Synthcity; arXiv 2602.17454 (analogue)",
        ("dpvision.private.statistics.head_run", "enough = config.n * config.epsilon >",
         "enough = len(self.data.train) * config.epsilon >"), by="declared",
    ),
    _bug(
        45, "features named by the first 4,096 rows", "digests of a sample instead of the whole",
        ("dpvision.models.inputs", "for start in range(0, len(self._features), 1024):",
         "for start in range(0, min(len(self._features), 4096), 1024):"), by="branches",
    ),
    _bug(
        45, "cached features named without the records", "NeuroMixGDP and Handcrafted-DP keep files without the data's name",
        (NETWORK, "return identify(split)[1], str(self", "return str(len(split)), str(self"), by="cached features",
    ),
    _bug(
        45, "cached rows of an encoder named without the records", "Handcrafted-DP keeps files without the data's name",
        (ENCODERS, 'return identify(split)[1], "rows"', 'return str(len(split)), "rows"'), by="cached features",
    ),
    _bug(
        45, "cached features named without the network's weights", "NeuroMixGDP keeps files without the encoder's name",
        (NETWORK, "self.config.part, cache.digest(parts), cache", "self.config.part, cache"),
        by="cached features",
    ),
    _bug(
        45, "cached features of the same images in another order", "digests of a set where the order counts",
        (NETWORK, "return identify(split)[1], str(self", "return identify(split)[0], str(self"), by="cached features",
    ),
    _bug(
        45, "cached rows of an encoder of the same images in another order", "digests of a set where the order counts",
        (ENCODERS, 'return identify(split)[1], "rows"', 'return identify(split)[0], "rows"'), by="cached features",
    ),
    _bug(
        45, "data named by its labels in any order", "digests of a set where the order counts",
        ("dpvision.data.dataset", 'np.ascontiguousarray(values, dtype="<i8")',
         'np.ascontiguousarray(np.sort(values), dtype="<i8")'), by="branches",
    ),
    _bug(
        46, "test images among the units of a training run", "splits joined before training",
        (PREPARE, "complete = config.complete(", WITH_TEST + "complete = config.complete("), by="held out, fetched",
    ),
    _bug(
        46, "test images among the rows of a release", "splits joined before a release",
        (MAKING, "complete = settings.complete(", WITH_TEST + "complete = settings.complete("), by="held out",
    ),
    _bug(
        46, "the released weights chosen by accuracy on the test split", "best-epoch selection, not counted",
        (TRAIN, 'load_weights(state.ema if config.release == "ema" else state.weights',
         'line = metrics.measure(state, prepared, model, test, 0.0)\n'
         '    best = line.get("test_accuracy_ema", 0) >= line.get("test_accuracy_last", 0)\n'
         "    load_weights(state.ema if best else state.weights"), by="held out",
    ),
    _bug(
        47, "noise from the stream of the sampler", "noise reused: who was drawn can be read off the noise",
        (GATE, 'return self._key.stream("noise", step=number', 'return self._key.stream("sampling", step=number'),
        by="replay train",
    ),
    _bug(
        47, "the same draws on all ranks", "opacus #662 (analogue)",
        (GATE, 'self.stream("sampling", step, rank=rank', 'self.stream("sampling", step, rank=0'),
        by="sampler of training",
    ),
    _bug(
        47, "the same draws in every block of rows", "noise reused by step (analogue)",
        (MIXTURES, 'gate.stream("coins", number)', 'gate.stream("coins", 0)'), by="blocks of releases",
    ),
    _bug(
        47, "the same weights in every block of rows", "noise reused by step (analogue)",
        (MIXTURES, 'gate.stream("weights", number)', 'gate.stream("weights", 0)'), by="blocks of releases",
    ),
    _bug(
        47, "nonces that do not know the sender", "nonce reuse, CWE-323",
        (LINKS, 'sender.to_bytes(2, "big") + receiver.to_bytes(2, "big")', 'receiver.to_bytes(4, "big")'), by="links",
    ),
    _bug(
        47, "the same noise after the learning rate has changed", "noise reused after a resume or a fork",
        (CONFIG, "lr: float = setting(4.0,", 'lr: float = setting(4.0, names_branch="never",'), by="branches",
    ),
    _bug(
        47, "an unsigned state continues with the same noise", "a check that passes what it does not find, CWE-347",
        (STATE, 'if key is not None and header.get("signature") != key.sign(header["digest"]):',
         'if key is not None and header.get("signature") not in (None, key.sign(header["digest"])):'),
        by="resume",
    ),
    _bug(
        47, "the same noise after a change before the first checkpoint", "noise reused after a resume or a fork",
        (STATE, "if key and state.branch and config.hash() == before.hash() and",
         "if key and state.branch and (config.hash() == before.hash() or not state.step) and"), by="resume",
    ),
    _bug(
        47, "a charge without a saved step is not on the path", "Opacus save_checkpoint (analogue)",
        (STATE, "path=(*state.path, charged_here(state)) if state.branch else",
         "path=(*state.path, charged_here(state)) if state.branch and state.step else"), by="resume",
    ),
    _bug(
        48, "rows of a release drawn at a rate from the true number of images", "opacus #571, #819 (analogue)",
        ("dpvision.core.sampling", "drawn = bernoulli(stream, len(present) * len(rows), rate=self.rate)",
         "drawn = bernoulli(stream, len(present) * len(rows), rate=min(1.0, self.rate * self.n / max(1, len(present))))"),
        by="sampler of releases",
    ),
    _bug(
        48, "weights of a mixture divided by their sum", "Dirichlet weights, RW-Mix as published",
        ("dpvision.private.statistics.mixtures", "        return np.asarray(np.floor(share",
         "        share = share / max(1e-9, share.sum())\n        return np.asarray(np.floor(share"),
        by="sampler of releases",
    ),
    _bug(
        49, "stopped when the private loss rises", "early stopping on private data, not counted",
        (LOOP, '        images += figures["images"]\n',
         '        images += figures["images"]\n'
         '        before, tally.last = getattr(tally, "last", 9.0), figures["mean_loss"]\n'
         '        if figures["mean_loss"] > before:\n            break\n'),
        (TRAIN, "        if state.step == sampler.steps:\n", "        if not watch.stop():\n"),
        by="replay whole runs",
    ),
    _bug(
        49, "the learning rate halved when the private loss rises", "schedules by private losses, not counted",
        (LOOP, '        images += figures["images"]\n',
         '        images += figures["images"]\n'
         '        before, tally.last = getattr(tally, "last", 9.0), figures["mean_loss"]\n'
         '        if figures["mean_loss"] > before:\n            phase = replace(phase, lr=phase.lr / 2)\n'),
        by="replay whole runs",
    ),
    _bug(
        49, "accuracy on the training split among the metrics", "train metrics released as if they were public",
        ("dpvision.private.training.metrics", "    return line\n",
         "    load_weights(state.weights, trainable(model))\n    if prepared.network.split(model) is None:\n"
         '        line["train_accuracy"] = accuracy(model, Inputs(prepared.data.train), prepared.network.task)\n    return line\n'),
        by="replay train",
    ),
    _bug(
        49, "the true number of images on the command line", "Synthcity; arXiv 2602.17454 (analogue)",
        ("dpvision.cli.plan", 'f"{unit}; n = {config.n:,} {unit}s"',
         'f"{unit}; n = {len(data.train):,} {unit}s"'), by="said",
    ),
    _bug(
        49, "whitened by private features", "NeuroMixGDP _mean.npy; Handcrafted-DP",
        (MAKING, "            white = load_or_compute_whitening(\n",
         "            from dpvision.private.statistics.whitening import Whitening\n"
         "            white = Whitening.of(self._features(prepared.data.train), rank=config.rank) or load_or_compute_whitening(\n"),
        by="units apart: rows, replay whole runs",
    ),
    _bug(
        49, "second moments of public gradients refreshed from the true number of images", "schedules by private sizes",
        (ASSISTANT, "state.weights, state.step, self._config,", "state.weights, state.step, replace(self._config, n=self._private),"),
        (ASSISTANT, "        public = prepared.public.images\n",
         "        public = prepared.public.images\n        self._private = len(prepared.data.train)\n"),
        by="any data of assisted runs",
    ),
    _bug(
        50, "the account opened with ten times delta", "a budget that nobody asked for",
        ("dpvision.private.training.charging", "config.epsilon, config.delta),", "config.epsilon, 10 * config.delta),"),
        by="accounts",
    ),
    _bug(
        50, "ties of a tuning go to the first trial", "the proof breaks ties at random; arXiv 2402.06701",
        (TUNE, "secrets.randbits(64), trial", "-number, trial"), by="law of tuning",
    ),
    _bug(
        50, "trials scored on private validation images", "tuning on private data, not counted",
        (TUNE, "Inputs(prepared.score), candidate", "Inputs(candidate.data.val or prepared.score), candidate"),
        by="held out, law of tuning",
    ),
    _bug(
        64, "the bound of one class for rows with several labels", "a bound that held for the first task",
        ("dpvision.private.statistics.logistic", 'return math.sqrt(2.0 if task == "classes" else outputs)',
         "return math.sqrt(2.0)"), by="several labels",
    ),
)  # fmt: skip
