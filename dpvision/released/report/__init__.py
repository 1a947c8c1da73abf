"""Cards and reports: card.json, card.md and report.html of a finished run or a released data set.

    card(run, account)         the guarantee of a run and what it is based on, as plain JSON values
    on_weights(facts, config)  the part of the card that goes into the header of the weights
    sentence(card)             the guarantee in plain words
    write(run, account)        card.json, card.md, report.html and ledger.jsonl of a run
    write_release(...)         card.json, card.md, report.html and README.md of a new release
    rewrite_release(release)   the same of a finished release

They contain only what may be released: public settings, results on the test split, and the account of the data set.
The fingerprint of the data, its path and the operator's log stay in `operator/`.
"""

from dpvision.released.report.cards import card, on_weights
from dpvision.released.report.page import rewrite_release, write, write_release
from dpvision.released.report.wording import sentence

__all__ = ["card", "on_weights", "rewrite_release", "sentence", "write", "write_release"]
