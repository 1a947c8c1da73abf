"""Bugs that only whole runs show: in what a run reads, plans, draws, keeps and says. Numbers go on from bugs.py."""

from __future__ import annotations

from tests.planted.bug import planted as _bug

TRAIN, PREPARE, INPUTS, CONFIG = "dpvision.train", "dpvision.prepare", "dpvision.inputs", "dpvision.config"
TUNE, ASSISTANT, ENCODERS, MAKING = (
    "dpvision.tune",
    "dpvision.assistant",
    "dpvision.encoders",
    "dpvision.release.making",
)

WHICH = "which = secrets.randbelow(len(prepared.candidates))"
HOW_MANY = "range(1, prepared.stopping.draw() + 1)"
PARTS = "parts = [images_of(int(i)) for i in drawn]"
N = "        n = n if self.n is None else self.n\n"
WITH_TEST = """if data.test is not None:
        both = [np.concatenate([getattr(s, k) for s in (data.train, data.test)]) for k in ("images", "labels")]
        persons = None if data.train.persons is None else np.concatenate([data.train.persons, data.test.persons])
        data = type(data)(data.name, data.classes, Split(*both, persons), data.val, data.test, data.inferred)
    """

BUGS_OF_RUNS = (
    _bug(
        40, "classes weighted by their private frequency", "class-balanced losses as they are used without privacy",
        (TRAIN, "        phase.loss,\n",
         "        lambda outputs, targets: phase.loss(outputs, targets)\n"
         "        * (1 / torch.bincount(torch.tensor(prepared.data.train.labels)))[targets],\n"),
        by="replay whole runs, units apart: training",
    ),
    _bug(
        41, "a person's images cut to the median of those drawn", "group bounds computed from private group sizes",
        (INPUTS, PARTS, PARTS + "\n            parts = [p[: int(np.median([len(q) for q in parts]))] for p in parts]"),
        by="replay persons, replay whole runs, units apart: training, fetched",
    ),
    _bug(
        41, "a person's images cut to the mean of all persons", "group bounds computed from private group sizes",
        (INPUTS, PARTS, PARTS + "\n            parts = [p[: max(1, len(split) // units(split, unit))] for p in parts]"),
        by="units apart: training, fetched",
    ),
    _bug(
        42, "assistance computed from private images", "public-assisted training without public data",
        (ASSISTANT, "public = prepared.synthetic", "public = prepared.data.train"),
        by="replay whole runs, units apart: training",
    ),
    _bug(
        43, "candidates in turn instead of by draw", "grid search charged as a random one; Papernot and Steinke 2022",
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
        43, "the number of trials by another law of the same mean", "Papernot and Steinke 2022",
        (TUNE, HOW_MANY, "range(1, tuning.stopping(prepared.stopping.mean, 1.0 - prepared.stopping.eta).draw() + 1)"),
        by="law of tuning",
    ),
    _bug(
        43, "trials go on until one is good", "optional stopping; Liu and Talwar 2019",
        (TUNE, "        watch(number)\n", "        watch(number)\n        if found >= 3:\n            break\n"),
        by="law of tuning",
    ),
    _bug(
        44, "steps by the true number of units although it is declared", "Synthcity; arXiv 2602.17454 (analogue)",
        (CONFIG, N, "        true = n\n" + N),
        (CONFIG, "steps = default_steps(n, batch) if", "steps = default_steps(true, batch) if"), by="declared",
    ),
    _bug(
        44, "the batch by the true number of units although it is declared", "opacus #571 (analogue)",
        (CONFIG, N, "        true = n\n" + N),
        (CONFIG, "default_batch(n) if self.batch is None", "min(n, default_batch(true)) if self.batch is None"),
        by="declared",
    ),
    _bug(
        44, "the rank of a release by the true number of images", "Synthcity; arXiv 2602.17454 (analogue)",
        ("dpvision.release.settings", "        n = self.n or (", "        true = n\n        n = self.n or ("),
        ("dpvision.release.settings", "max(LEAST_RANK, n // 4)", "max(LEAST_RANK, true // 4)"), by="declared",
    ),
    _bug(
        45, "kept features named without the records", "NeuroMixGDP and Handcrafted-DP keep files without the data's name",
        (PREPARE, "return identify(split)[1], str(self", "return str(len(split)), str(self"), by="kept features",
    ),
    _bug(
        45, "kept rows of an encoder named without the records", "Handcrafted-DP keeps files without the data's name",
        (ENCODERS, 'return identify(split)[1], "rows"', 'return str(len(split)), "rows"'), by="kept features",
    ),
    _bug(
        45, "kept features named without the network's weights", "NeuroMixGDP keeps files without the encoder's name",
        (PREPARE, "self.config.part, features.digest(parts), features", "self.config.part, features"),
        by="kept features",
    ),
    _bug(
        46, "test images among the units of a training", "splits joined before training",
        (PREPARE, "complete = config.complete(", WITH_TEST + "complete = config.complete("), by="held out, fetched",
    ),
    _bug(
        46, "test images among the rows of a release", "splits joined before a release",
        (MAKING, "complete = settings.complete(", WITH_TEST + "complete = settings.complete("), by="held out",
    ),
)  # fmt: skip
