"""The model card of a published folder, as Markdown, from the content of its `published.json`."""

from __future__ import annotations

from typing import Any

NAMES = {
    "probe": "probe on all units",
    "unit": "best single unit",
    "baseline_tfidf": "TF-IDF + logistic regression",
    "baseline_majority": "majority class",
}
SPLITS = {"test": "test split of the run's own text", "val": "validation split of the run's own text"}


def model_card(about: dict[str, Any]) -> str:
    """The README of a published folder.

    Args:
        about: Content of `published.json`, as `publish.describe` gives it; None stands for what is not known.
    """
    sections = [_heading(about), _use(about), _model(about), _task(about), _provenance(about)]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _heading(about: dict[str, Any]) -> list[str]:
    model, classes = about["model"], " or ".join(about["classes"])
    kind = {"mlstm": "multiplicative LSTM", "lstm": "LSTM"}[model["kind"]]
    return [
        f"# {about['task']}: {kind} on bytes, with a probe",
        "",
        f"A byte language model of {model['hidden_size']:,} units whose state, read by an L1 logistic regression, labels a "
        f"text as {classes}.",
        "",
        f"Licence: {about['licence']}",
    ]


def _use(about: dict[str, Any]) -> list[str]:
    features = about["features"]
    layer = "the last layer" if features["layer"] == -1 else f"layer {features['layer']}"
    return [
        "## Use",
        "",
        '    bigbatch classify --model FOLDER "a text"',
        "",
        "where FOLDER is this folder, wherever it lies. Nothing else is needed: no data and no training.",
        f"The feature is the {features['state']} state ({features['transform']}) of {layer} after the text's last byte, a space.",
    ]


def _model(about: dict[str, Any]) -> list[str]:
    model, bpc = about["model"], about["bpc"]
    data = ", ".join(about["training_data"]) or "not recorded"
    read = f"{about['samples']:,} samples (windows), {about['tokens']:,} bytes" if about["tokens"] else "not recorded"
    score = "not measured on these weights"
    if bpc:
        score = f"{bpc['bpc']:.4f} bits per character over {bpc['num_targets']:,} bytes ({SPLITS[bpc['split']]})"
    sizes = f"{model['num_layers']} x {model['hidden_size']:,} units, embedding {model['embedding_size']}"
    rows = [("sizes", f"{sizes}, vocabulary {model['vocab_size']}"), ("trained on", data), ("read", read)]
    return ["## Language model", "", *_table(("", ""), [*rows, ("held-out score", score)])]


def _task(about: dict[str, Any]) -> list[str]:
    lines = [f"## Task {about['task']}", ""]
    if about["scores"] is None:
        lines.append("Accuracy: not measured; the test texts had no labels, or the result is gone.")
    else:
        rows = [
            (NAMES[name], f"{s['accuracy']:.4f}", f"{s['low']:.4f} to {s['high']:.4f}", f"{s['n']:,}")
            for name, s in about["scores"].items()
        ]
        confidence = about["scores"]["probe"]["confidence"]
        lines += _table(("test accuracy", "", f"{confidence:.0%} interval (Wilson)", "n"), rows)
    probe = about["probe"]
    lines += ["", f"The probe has C = {probe['C']:g} and uses {probe['num_units']:,} units."]
    if about["task_data"]:
        rows = [
            (part, ", ".join(facts["files"]), f"{facts['n']:,}", f"`{facts['sha256']}`")
            for part, facts in about["task_data"].items()
        ]
        lines += ["", *_table(("part", "files", "texts", "sha256 of texts and labels"), rows)]
    return lines


def _provenance(about: dict[str, Any]) -> list[str]:
    facts, converted = about["provenance"], about["provenance"]["converted_from"]
    rows = [
        ("published", about["created"]),
        ("by bigbatch", facts["code_version"] or "not recorded"),
        ("weights, sha256", f"`{facts['model_sha256']}`"),
        ("config.json, sha256 of its sorted content", f"`{facts['config_sha256']}`"),
        (
            "training data, sha256 of its token store",
            f"`{facts['data_sha256']}`" if facts["data_sha256"] else "not recorded",
        ),
    ]
    if converted:
        rows.append(("converted from", f"{converted['file']} ({converted['layout']})"))
    return ["## Provenance", "", *_table(("", ""), rows)]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(head), f"|{'---|' * len(head)}", *map(line, rows)]
