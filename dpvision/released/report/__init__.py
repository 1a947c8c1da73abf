"""From the folder of a finished run to what a reader needs: card.json, card.md, report.html and ledger.jsonl.

    card(run, account)         the guarantee and all it rests on, as plain JSON values
    sentence(card)             the guarantee in one sentence
    on_weights(facts, config)  what of it the weights say of themselves, in their header
    write(run, account)        all four files, at the top of the run folder

Only what may be released goes into them: public settings, what the model does on the test split, the account of the
data set. The fingerprint of the data, its path and the operator's log stay in `operator/`.
"""

from __future__ import annotations

from dpvision.released.report.run_card import card, on_weights, write
from dpvision.released.report.wording import sentence

__all__ = ["card", "on_weights", "sentence", "write"]
