"""evidence.html: one document for the data protection officer, made from the card of a run or a release alone.

    topics     what NIST SP 800-226 (March 2025) asks of a claim of differential privacy, by the layers of its pyramid
    anonymity  what EDPB Opinion 28/2024 asks about the anonymity of models
    registry   an entry for the registry of deployments at registry.opendp.org, with gaps for its authors
    metadata   the head of a model card, as the Hugging Face Hub reads it

The questions are in our words. An answer states what the card shows and names the entries that it rests on. Where the
card shows nothing, or only a part, the document states what is left for people; it never asserts more than the card.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.core.events import from_json
from dpvision.released.report import tables, wording
from dpvision.released.report.page import fill
from dpvision.settings.figures import describe, lower, upper
from dpvision.storage.run_folder import Run, hide_times

FILE = "evidence.html"
NOT_ANSWERED = "not answered by software"
Card = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """A question, the answer that the card gives with the entries it rests on, and what is left for people."""

    question: str
    answer: str | None
    sources: tuple[str, ...] = ()
    left: str | None = None

    @property
    def state(self) -> str:
        """How far the question is answered."""
        if self.answer is None:
            return NOT_ANSWERED
        return "answered" if self.left is None else "answered in part"


def write(folder: Path, card: dict[str, Any]) -> Path:
    """Write evidence.html into the folder of the run or release."""
    path = folder / FILE
    files.write(path, render(card), mode=0o644)
    hide_times(Run(folder))
    return path


def render(card: dict[str, Any]) -> str:
    """Return the document as one self-contained page."""
    return fill(
        "evidence.html",
        name=tables.plain(card["run"]),
        private=card["status"] == "private",
        status=card["status"],
        sentence=wording.sentence(card),
        sections=[
            ("nist", "NIST SP 800-226: evaluating the guarantee", nist(card)),
            ("edpb", "EDPB Opinion 28/2024: is the model anonymous?", edpb(card)),
        ],
        registry=as_yaml(registry(card)),
        metadata=wording.as_yaml(metadata(card)),
        software=", ".join(f"{name} {number}" for name, number in card["software"].items()),
    )


def collect(card: Card) -> dict[str, Any]:
    """Return the content of the document as plain JSON values."""
    return {
        "nist_sp_800_226": [{**asdict(item), "state": item.state} for item in nist(card)],
        "edpb_opinion_28_2024": [{**asdict(item), "state": item.state} for item in edpb(card)],
        "registry": registry(card),
        "metadata": metadata(card),
    }


def count(card: Card) -> dict[str, int]:
    """Return how many questions are answered, in part, and not by software."""
    states = [item.state for item in (*nist(card), *edpb(card))]
    return {
        "answered": states.count("answered"),
        "in part": states.count("answered in part"),
        "left": states.count(NOT_ANSWERED),
    }


def nist(card: Card) -> list[Item]:
    """Return the topics of NIST SP 800-226, from the top of its pyramid to the bottom."""
    unit, private = card["unit"], card["status"] == "private"
    return [
        Item(
            "What are the privacy parameters, and are they proven?",
            _guarantee(card),
            ("status", "guarantee.epsilon", "guarantee.delta", "guarantee.accountant", "guarantee.composition"),
        ),
        Item(
            "Which variant of differential privacy is it, and what are its other measures?",
            _variant(card),
            ("guarantee.profile", "guarantee.mu", "meaning.gaussian"),
        ),
        Item("What do the parameters mean for an attacker?", _attacks(card), ("attack_success", "meaning")),
        Item(
            "Is this epsilon small enough for these data?",
            None,
            left="A decision of those responsible for the data, by what an attack could do to the people in it.",
        ),
        Item(
            "What is the unit of privacy?",
            f"One {unit}."
            + ("" if unit == "person" else " Someone with several images in the data is protected less."),
            ("unit",),
            None
            if unit == "person"
            else "Whether anyone has several images in the data, and whether one image is the right unit.",
        ),
        Item(
            "Which data sets are neighbours (bounded or unbounded differential privacy)?",
            f"{_neighbours(card)} {_replaced(card)}",
            ("adjacency", "meaning.replace_one_epsilon"),
        ),
        Item(
            "Is each individual one unit?",
            None,
            left="Whether a person occurs under two names, and whose data beyond the person's own an image shows.",
        ),
        Item(
            "What do all releases from the same data reveal together?",
            _account(card),
            ("data_set", "overlapping_accounts", "new_account"),
            "Releases from the same data that were made without this ledger, or by other software.",
        ),
        Item(
            "Which mechanism is used, and what bounds the contribution of a unit?",
            _mechanism(card),
            (*(("sampler",) if "sampler" in card else ()), "mechanism", "events"),
            "The card states what was accounted. That the software does it is argued and tested in its documentation, "
            "not shown by this run.",
        ),
        Item(
            "Was the tuning of hyperparameters counted?",
            f"{card['tuning'].capitalize()}. {_by_hand(card)}".strip(),
            ("tuning", *(("chosen_by_hand",) if "chosen_by_hand" in card else ())),
            None if card["tuning"].startswith("counted") else "Whether settings were chosen by results on these data.",
        ),
        Item(
            "Which data went in that the guarantee does not protect?",
            _public(card),
            (("public_inputs", "public_facts") if "public_inputs" in card else ("features", "read_off")),
            "Whether these inputs and facts may be public.",
        ),
        Item("What is not covered?", " ".join(card["not_covered"]), ("not_covered",)),
        Item(
            "How useful is the result?",
            _utility(card),
            ("accuracy", *(("evaluation",) if "evaluation" in card else ())),
            "Whether this is enough for the intended use.",
        ),
        Item(
            "Is the loss of accuracy shared unevenly (bias)?",
            _balance(card),
            (("evaluation",) if _balance(card) else ()),
            "Accuracy by sex, age, site or device, and whether the data represent those whom the model is used for.",
        ),
        Item(
            "Which queries are answered, and how often?",
            f"One {_what(card)} is released. Whoever uses it computes from what was released, without access to the "
            "private data.",
            ("events",),
            "Whether other results from the same data are given out.",
        ),
        Item(
            "Whom must the individuals trust?",
            "The operator, who holds the private data and adds the noise (the central model)"
            + (". The bound holds against everyone who sees only what was released." if private else "."),
            ("status", "mechanism.noise"),
            "Who the operator is, and who else has access to the data, the keys and the ledger.",
        ),
        Item(
            "Where does the noise come from, and is floating-point arithmetic considered?",
            f"{card['mechanism']['noise']}.",
            ("mechanism.noise", "software"),
        ),
        Item(
            "Was the implementation tested against the claim?",
            _audit(card),
            ("audit",),
            None if card["audit"] else "An audit: `dpvision audit`.",
        ),
        Item(
            "Are side channels closed (time, memory, failures)?",
            "No: " + " ".join(x for x in card["not_covered"] if "Side channels" in x or "not refused" in x),
            ("not_covered",),
            "Who shared the machine or saw messages while the private data were in use.",
        ),
        Item(
            "How are the private data stored, and who has access?",
            None,
            left="Access control, encryption, backups and deletion of the private data, the keys and the ledger.",
        ),
        Item(
            "How were the data collected, and what was exposed by that?",
            None,
            left="Purpose, consent or another legal basis, minimisation, and the security of the collection.",
        ),
    ]


def edpb(card: Card) -> list[Item]:
    """Return the questions of EDPB Opinion 28/2024 about anonymity."""
    private = card["status"] == "private"
    evaluated = " and ".join(
        name for name, key in (("the accuracy on the test split", "accuracy"), ("an audit", "audit")) if card.get(key)
    )
    return [
        Item(
            "Is the model meant to provide data about the people it was trained on?",
            _purpose(card),
            (*(("public_facts.classes",) if "public_facts" in card else ("mechanism", "classes")),),
            "Whether the intended use does.",
        ),
        Item(
            "How likely is it that personal data can be extracted from the model itself?",
            _attacks(card)
            + (
                " These bounds hold for attackers who have the whole model, know everything else about the data and "
                "compute without limit, short of predicting the noise."
                if private
                else ""
            ),
            ("attack_success", "meaning"),
            "Whether these likelihoods are insignificant, with all means reasonably likely to be used.",
        ),
        Item(
            "How likely is it that personal data are obtained from queries?",
            "Not more likely than from the model itself: answers are computed from it and from what the user enters.",
            ("attack_success", "meaning"),
            "Whether these likelihoods are insignificant. What users enter is not covered by the bound.",
        ),
        Item(
            "Design: which sources of data were selected, and why?",
            None,
            left="Sources, their selection, and whether inappropriate ones were excluded.",
        ),
        Item(
            "Design: how were the data prepared and minimised?",
            _prepared(card),
            (("public_facts",) if "public_facts" in card else ("image_shape", "classes", "n")),
            "Whether fewer data would have been enough, pseudonymisation, and filters before the training.",
        ),
        Item(
            "Design: which methods of training reduce what can be identified?",
            f"{'Differential privacy' if private else 'Noise without a guarantee'}. {_guarantee(card)} "
            f"{_mechanism(card)}",
            ("status", "guarantee", "mechanism", "events"),
        ),
        Item(
            "Design: which measures limit the outputs?",
            "None."
            + (" The bound does not rest on any: it holds for the released files themselves." if private else ""),
            ("status", "attack_success"),
            "Measures of the system that the model becomes a part of.",
        ),
        Item(
            "Analysis: was the development governed, documented and reviewed?",
            f"The card states settings, software and what is not covered{', and ' + evaluated if evaluated else ''}.",
            ("config", "software", "not_covered"),
            "Internal or external reviews of code and of these documents.",
        ),
        Item(
            "Tests: which attacks was the model tested against, and with which result?",
            _audit(card),
            ("audit",),
            "Attacks that were not made: inference of attributes, extraction, inversion and reconstruction of images.",
        ),
        Item(
            "Documents: the impact assessment, and the advice of the data protection officer",
            None,
            left="The assessment, or why it was not needed, and the officer's advice.",
        ),
        Item(
            "Documents: technical and organisational measures during the life of the model",
            f"Technical: {'differential privacy, ' if private else ''}{_short(card)}.",
            ("guarantee", "status"),
            "All organisational measures, and technical ones outside of the training.",
        ),
        Item(
            "Documents: theoretical resistance to identification, as metrics",
            _attacks(card),
            ("guarantee", "attack_success", "meaning"),
        ),
        Item(
            "Documents: what is handed to those who deploy the model",
            "card.json, card.md and report.html, with the guarantee and what it does not cover.",
            ("not_covered",),
            "That they received these, and that they verify the signature (`dpvision verify`).",
        ),
        Item(
            "Context: who gets the model, for which use, and with which restrictions?",
            None,
            left="Recipients, terms, access control, and what is done when new attacks become known.",
        ),
        Item(
            "Were the personal data processed lawfully during the development?",
            None,
            left="The legal basis, information of the individuals, and their rights.",
        ),
    ]


def registry(card: Card) -> dict[str, Any]:
    """Return an entry for the registry of deployments; None where its authors must fill in."""
    private, guarantee = card["status"] == "private", card["guarantee"]
    exact = card["meaning"]["gaussian"]
    dataset = card.get("what") == "data set"
    return {
        "basic": {
            "name": None,
            "data_curators": [{"data_curator_name": None, "data_curator_type": None}],
            "description": wording.sentence(dict(card)),
            "intended_use": None,
            "data_product_type": "Synthetic data" if dataset else "Machine learning model",
            "data_product_region": None,
            "data_product_sector": None,
            "publication_date": None,
        },
        "dp_variant": {
            "variant_name": "Approximate DP" if private else None,
            "data_domain": _prepared(card),
            "unprotected_quantities": " ".join(card["not_covered"]),
        },
        "privacy_loss": {
            "privacy_unit": "User-level" if card["unit"] == "person" else "Record-level",
            "privacy_unit_details": f"One {card['unit']}; neighbouring data sets: {card['adjacency']}.",
            "privacy_parameters": {
                "epsilon": guarantee["epsilon"],
                "delta": guarantee["delta"],
                **({"rho": exact["zcdp_rho"]} if exact else {}),
            },
            "privacy_parameters_details": _guarantee(card),
        },
        "deployment_model": {
            "model_name": "Central",
            "release_type": "One release",
            "release_type_details": _account(card),
            "data_source_type": None,
            "access_type": "Non-interactive",
        },
        "accounting": {
            "composition": guarantee["composition"],
            "post_processing": "All that is computed from what was released, such as predictions.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": card["tuning"],
            "mechanisms": f"{_mechanism(card)} Noise: {card['mechanism']['noise']}.",
            "justification": None,
        },
        "administrative": {"evidence_sources": None, "status": "Draft", "registry_authors": None, "tier": None},
    }


def metadata(card: Card) -> dict[str, Any]:
    """Return the head of the model card or data set card, as in card.md."""
    return wording.metadata_of_data(card) if card.get("what") == "data set" else wording.metadata_of_model(card)


def as_yaml(values: Mapping[str, Any], depth: int = 0) -> str:
    """Format nested values as YAML: keys in blocks, values as JSON, which is valid YAML whatever they contain."""
    lines = []
    for key, value in values.items():
        nested = isinstance(value, Mapping)
        text = f"\n{as_yaml(value, depth + 1)}" if nested else f" {_scalar(value)}"
        lines.append(f"{'  ' * depth}{key}:{text}")
    return "\n".join(lines)


def _scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text  # YAML needs the point


def _what(card: Card) -> str:
    return str(card.get("what", "model"))


def _short(card: Card) -> str:
    """Return epsilon at delta, or why there is none."""
    proved = card["guarantee"]
    if card["status"] != "private":
        return f"no guarantee ({card['status']})"
    return f"epsilon {upper(proved['epsilon'])} at delta {proved['delta']:g}"


def _guarantee(card: Card) -> str:
    proved = card["guarantee"]
    if card["status"] != "private":
        return f"None: {card['status']}."
    return f"{_short(card).capitalize()}: an upper bound by {proved['accountant']}, from {proved['composition']}."


def _variant(card: Card) -> str:
    if card["status"] != "private":
        return f"None: {card['status']}."
    proved, exact = card["guarantee"], card["meaning"]["gaussian"]
    text = (
        f"(epsilon, delta)-differential privacy, at {len(proved['profile'])} pairs on the card. Down to this delta, "
        f"mu-GDP with mu {upper(proved['mu'])} bounds the curve."
    )
    if exact is None:
        return f"{text} No exact mu or rho is stated, since the mechanism is not a single Gaussian mechanism."
    return (
        f"{text} It is a Gaussian mechanism with mu {upper(exact['mu'], 4)}, which is zCDP with rho "
        f"{upper(exact['zcdp_rho'], 4)}, {tables.IDEAL}."
    )


def _attacks(card: Card) -> str:
    if card["status"] != "private":
        return f"No attack is limited: {card['status']}."
    one = next(x for x in card["attack_success"] if x["false_positive_rate"] == 0.01)
    found = tables.upper_percent(one["true_positive_rate_at_most"])
    guesses = "; ".join(f"{before} becomes at most {after}" for before, after in tables.reconstruction(dict(card)))
    return (
        f"Membership: a test that wrongly reports 1% of those who are not in the data finds at most {found} of those "
        "who are. Reconstruction: the probability of guessing a record rightly, knowing all others, compared with that "
        f"of a guess if the record were not in the data: {guesses}."
    )


def _neighbours(card: Card) -> str:
    if card["adjacency"] == wording.ADD_OR_REMOVE:
        return f"Unbounded: {card['adjacency']}."
    return (
        f"Neither, but {card['adjacency']}. As in bounded differential privacy, the number of {card['unit']}s is not "
        "protected."
    )


def _replaced(card: Card) -> str:
    replaced = card["meaning"]["replace_one_epsilon"]
    if replaced is None:
        return f"No epsilon is proven for replacing one {card['unit']} by another."
    return (
        f"If one {card['unit']} is replaced by another (bounded), epsilon is at most {upper(replaced)} at this delta."
    )


def _account(card: Card) -> str:
    if card["data_set"] is None:
        return "Unknown: no ledger was read."
    shared = len(card["overlapping_accounts"])
    others = f" Data sets that share images with this one: {shared:,}, listed on the card." if shared else ""
    return tables.account(dict(card)) + others


def _mechanism(card: Card) -> str:
    made, unit = card["mechanism"], card["unit"]
    charged = "; ".join(describe(from_json(event)) for event in card["events"])
    if "sampler" not in card:
        return f"{made['name']}: {charged}. {card['account_of_a_record'].capitalize()}."
    bound = (
        "" if card["config"].get("head") else f", each {unit}'s contribution with a norm of at most {made['clip']:g}"
    )
    return f"Noisy sums{bound}: {charged}."


def _by_hand(card: Card) -> str:
    if "chosen_by_hand" not in card:
        return ""
    named = card["chosen_by_hand"]
    return "Settings that were chosen by hand: " + (
        "all." if named is None else f"{', '.join(x.replace('_', ' ') for x in named) or 'none'}."
    )


def _public(card: Card) -> str:
    if "public_inputs" not in card:
        read = ", ".join(card["read_off"]) or "none"
        encoder = f"The encoder is {card['features']['encoder']} ({card['features']['origin']})."
        return f"{encoder} Facts read from the data: {read}."
    inputs = "; ".join(
        f"{kind}: {tables.plain(entry['file'])}, digest {entry['digest'][:16]}"
        for kind, entry in card["public_inputs"].items()
    )
    read = ", ".join(name for name, fact in card["public_facts"].items() if fact["known"] != "declared")
    return f"Public weights or images: {inputs or 'none'}. Facts read from the data: {read or 'none'}."


def _utility(card: Card) -> str:
    accuracy = card["accuracy"]
    if not accuracy:
        return "Unknown: there is no test split."
    if "released_test_accuracy" in accuracy:
        return f"Test accuracy {tables.percent(accuracy['released_test_accuracy'])}, measured without noise."
    figures = ", ".join(f"{tables.plain(name)} {tables.percent(share)}" for name, share in accuracy.items())
    return f"Test accuracy of classifiers trained on the release: {figures}; measured without noise."


def _balance(card: Card) -> str | None:
    measured = card.get("evaluation")
    if not measured or measured["balanced_accuracy"] is None:
        return None
    return (
        f"By class: accuracy is {tables.percent(measured['accuracy'])}, and the mean over the classes is "
        f"{tables.percent(measured['balanced_accuracy'])}. evaluation.json has every class."
    )


def _audit(card: Card) -> str:
    if not card["audit"]:
        return "No audit was made."
    parts = []
    for name, audit in card["audit"].items():
        verdict = "REFUTED: more than the claim allows" if audit["refuted"] else "the claim was not refuted"
        parts.append(
            f"Membership, {tables.AUDITS[name]}: {audit['canaries']:,} canaries show epsilon at least "
            f"{lower(audit['epsilon_at_least'])} with {tables.percent(audit['confidence'])} confidence; {verdict}."
        )
    return " ".join(parts) + " A lower bound below the claim does not show that less is revealed."


def _purpose(card: Card) -> str:
    if card.get("what") == "data set":
        return f"It is a data set of noisy features. Rows are {card['mechanism']['rows_are']}."
    count = len(card["public_facts"]["classes"]["value"])
    return f"It is a classifier: for an image that the user gives, it returns probabilities of {count:,} classes."


def _prepared(card: Card) -> str:
    if "public_facts" not in card:
        shape: Sequence[Any] = card["image_shape"]
        return f"{card['n']:,} images of {' x '.join(map(str, shape))}, {len(card['classes']):,} classes."
    facts = card["public_facts"]
    units = "images" if card["unit"] == "image" else "persons"
    return (
        f"{facts['n']['value']:,} {units}; images of {' x '.join(map(str, facts['image_shape']['value']))} (channels, "
        f"height, width); {len(facts['classes']['value']):,} classes."
    )
