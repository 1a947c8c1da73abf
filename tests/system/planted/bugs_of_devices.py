"""Bugs that only an accelerator shows, or that come with one. Numbers go on from bugs_of_runs.py.

They are found by checks on the stand-in (devices.py), which need a C++ compiler.
"""

from __future__ import annotations

from tests.system.planted.bug import planted as _bug

DEVICE, SUM, PASSES, SLOTS, EXACT, TRACE = (
    "dpvision.models.device",
    "dpvision.private.engine.clipped_sum",
    "dpvision.private.engine.passes",
    "dpvision.private.engine.slots",
    "dpvision.private.engine.exact",
    "dpvision.private.engine.trace",
)
STEPS, STATE, NETWORK, INPUTS = (
    "dpvision.private.training.private_sum",
    "dpvision.private.training.state",
    "dpvision.private.training.network",
    "dpvision.models.inputs",
)
PREPARE, GATE = "dpvision.private.training.prepare", "dpvision.core.gate"

PINNED = "pinned.append(torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values))"
NORMS = "norms = torch.linalg.vector_norm(self._flat(units).view(units, -1, self._block), dim=2)"
SHARE = "share = self._clipped_sum.sum(fetch_ahead(parts) if self._ahead else parts, public).cpu()"
NOISY = "noisy = torch.empty_like(share) if total is None else self._add_noise(total, number)"
FIGURES = "flat = torch.cat([t.double() for group in figures for t in (group.losses, group.norms)]).cpu()"

BUGS_OF_DEVICES = (
    _bug(
        51, "public vectors stay on the host", "device mixes, as in opacus #580 (analogue)",
        (PASSES, "mover.move(vector.detach().reshape(-1), pinned)", "vector.detach().reshape(-1)"),
        by="sums on a device",
    ),
    _bug(
        51, "outputs read without a copy to the host", "device mixes (analogue)",
        (INPUTS, "[torch.cat(column).cpu().numpy() for column", "[torch.cat(column).numpy() for column"),
        by="runs on a device",
    ),
    _bug(
        51, "weights loaded by putting host tensors into the parameters", "torch.nn.utils.vector_to_parameters",
        (STATE, "        parameter.copy_(part.view_as(parameter))",
         "        parameter.data = part.cpu().view_as(parameter)"), by="runs on a device",
    ),
    _bug(
        51, "a buffer on the current device instead of the model's", "code written for one card (analogue)",
        (PASSES, "dtype=values.dtype, device=self._device)\n        far[", "dtype=values.dtype, device=self._device.type)\n        far["),
        by="sums on a device, runs on a device",
    ),
    _bug(
        52, "a late copy to the host is read early", "torch docs, non_blocking copies to the host",
        (SUM, FIGURES, FIGURES.replace('.cpu()', '.to("cpu", non_blocking=True)')),
        by="sums on a device",
    ),
    _bug(
        52, "one pinned buffer for all copies", "torch docs, non_blocking copies from reused memory",
        (PASSES, PINNED, "key = (tuple(values.shape), values.dtype)\n"
         "                buffers = self.__dict__.setdefault('_buffers', {})\n"
         "                buffers.setdefault(key, torch.empty(values.shape, dtype=values.dtype, pin_memory=True))\n"
         "                pinned.append(buffers[key].copy_(values))"), by="sums on a device",
    ),
    _bug(
        53, "passes are not filled with blank units", "kernels chosen by the batch size",
        ("dpvision.private.engine.pass_size", "yield units[start : start + places], places, size",
         "yield units[start : start + places], min(places, len(units) - start), size"), by="apart on a device",
    ),
    _bug(
        53, "blank units count as private ones", "padding that takes part in a sum (analogue)",
        (SUM, "bad |= group.shares.view(len(norms), -1)[:, 0] == 0", "pass"), by="sums on a device",
    ),
    _bug(
        53, "copies that fill up a unit count in its mean", "padding that takes part in a mean (analogue)",
        (PASSES, "shares = torch.where(image < counts, 1.0 / counts.double(), 0.0)",
         "shares = torch.full_like(image % counts, 1.0 / size, dtype=torch.float64)"), by="sums on a device",
    ),
    _bug(
        53, "the size of a pass from the memory that is free", "batch sizes found by what fits",
        (DEVICE, "int(read(device)[1])", "int(read(device)[0])"), by="named by device",
    ),
    _bug(
        54, "a branch without the device in its name", "noise reused after a resume elsewhere",
        (DEVICE, "parts += [device.type, *_describe(device)]", "parts += []"), by="named by device",
    ),
    _bug(
        54, "a branch without the card in its name", "noise reused on another card",
        (DEVICE, "parts += [device.type, *_describe(device)]", "parts += [device.type]"), by="named by device",
    ),
    _bug(
        54, "a branch without the precision in its name", "noise reused in another precision",
        (DEVICE, 'parts = [] if precision == "float32" else [precision]', "parts = []"), by="named by device",
    ),
    _bug(
        54, "a branch without the size of its passes in its name", "noise reused with other kernels",
        (STATE, "name_computation(device, precision), passes)", "name_computation(device, precision))"),
        by="named by device",
    ),
    _bug(
        54, "a branch without the bits of its device in its name", "noise reused on a card that rounds differently",
        (PREPARE, "passes = \", \".join(filter(None, (self.network.passes, self._rounding())))",
         "passes = self.network.passes"), by="named by device",
    ),
    _bug(
        55, "norms in bfloat16", "norms computed inside autocast",
        (SLOTS, NORMS, NORMS.replace("self._flat(units)", "self._flat(units).bfloat16()")), by="sums on a device",
    ),
    _bug(
        55, "clipped by a factor in half precision", "factors computed inside autocast",
        (SUM, "factors = _make_odd(self._style.factors(squares, self._names))",
         "factors = _make_odd(self._style.factors(squares, self._names).half().double())"), by="sums on a device",
    ),
    _bug(
        55, "TF32 left on for convolutions", "torch's default, torch.backends.cudnn.allow_tf32",
        (DEVICE, "torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 =",
         "torch.backends.cuda.matmul.allow_tf32 ="),
        (DEVICE, "for backend in (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul):",
         "for backend in (torch.backends.cuda.matmul,):"), by="sums on a device",
    ),
    _bug(
        56, "contributions added in float32 on the device", "sums left to the device",
        (EXACT, "self._add(torch.cat([self._on_grid(part).sum(0) for part in parts]))",
         "self._add(torch.cat([part.float().sum(0).double() for part in parts]))"),
        by="sums on a device",
    ),
    _bug(
        56, "the total of a batch in float32", "sums left to the device",
        (SUM, "total = torch.zeros(self.size, dtype=torch.float64, device=self._device)",
         "total = torch.zeros(self.size, dtype=torch.float32, device=self._device)"), by="sums on a device",
    ),
    _bug(
        57, "stale rows of the pass before", "memory reused without being cleared; opacus PR #707 (analogue)",
        (SLOTS, "rows.add_(values) if self.used else rows.copy_(values)", "rows.add_(values)"),
        by="sums on a device",
    ),
    _bug(
        57, "places for blank units are not cleared", "uninitialised memory",
        (PASSES, "        far[len(values) :].zero_()\n", ""), by="sums on a device",
    ),
    _bug(
        58, "initial weights drawn by the device's generator", "torch.device as a context around a model",
        (NETWORK, "model = build(config.model, self.shape, classes=self.task.outputs, seed=config.seed)",
         "with self.device:\n            model = build(config.model, self.shape, classes=self.task.outputs, seed=config.seed)"),
        by="runs on a device",
    ),
    _bug(
        58, "a checkpoint computed again in a thread of the device", "torch's backward threads",
        (TRACE, "with torch.autograd.set_multithreading_enabled(False):", "if True:"), by="sums on a device",
    ),
    _bug(
        59, "noise on every rank", "opacus PR #347 (analogue)",
        (STEPS, SHARE, SHARE.replace("share = ", "share = self._add_noise(") + ", number)"),
        (STEPS, NOISY, "noisy = torch.empty_like(share) if total is None else total"), by="ranks on devices",
    ),
    _bug(
        59, "noise drawn ahead for another sensitivity", "noise not calibrated to the sum",
        (STEPS, "self._clipped_sum.size, self._clipped_sum.sensitivity)", "self._clipped_sum.size, 1.0)"),
        (GATE, "early[0] == use else", "early[0][:2] == use[:2] else"), by="ranks on devices",
    ),
    _bug(
        60, "float64 of a device is not tried", "float64 emulated by a library",
        (DEVICE, "if float(numbers.sum()) != 4.0:", "if float(numbers.sum()) != float(numbers.sum()):"),
        by="tried on a device",
    ),
    _bug(
        60, "no certificate on a device", "kernels that round by place or by chance",
        (PREPARE, "        for part in self.network.parts:\n            try:",
         "        for part in self.network.parts if self.device.type == 'cpu' else ():\n            try:"),
        by="tried on a device",
    ),
)  # fmt: skip
