"""Results as a Markdown table, for a page or a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["COLUMNS", "as_percent", "cells", "to_markdown"]

COLUMNS = (
    "dataset", "problems", "avg@{k}", "pass@{k}", "maj@{k}", "truncated", "no answer", "failed",
    "mean length",
)  # fmt: skip
"""What a row of results says; ``{k}`` is the number of samples."""


def to_markdown(results: Mapping[str, Any]) -> str:
    """Return a table with intervals, what was evaluated, and a comparison if there is one."""
    lines = [f"**{results['label']}**", ""] if "label" in results else []
    if "datasets" in results:
        names = [column.format(k=results["samples"]) for column in COLUMNS]
        lines += [_row(names), _row(["---"] * len(names))]
        lines += [_row(cells(name, row)) for name, row in results["datasets"].items()]
        lines += ["", _settings(results)]
    if "compared" in results:
        compared = results["compared"]
        lines += ["", f"{compared['after']} minus {compared['before']}, paired:", ""]
        lines += [_row(["dataset", "problems", "difference of avg@k"]), _row(["---"] * 3)]
        lines += [
            _row([name, str(row["problems"]), as_percent(row)])
            for name, row in compared["datasets"].items()
        ]
    return "\n".join(lines) + "\n"


def cells(name: str, row: Mapping[str, Any]) -> list[str]:
    """Return one dataset's cells, in the order of ``COLUMNS``."""
    return [
        name,
        str(row["problems"]),
        *(as_percent(row[key]) for key in ("avg_at_k", "pass_at_k", "maj_at_k")),
        f"{row['truncated_frac'] * 100:.1f} %",
        f"{row['no_answer_frac'] * 100:.1f} %",
        str(row["failed"]),
        f"{row['answer_tokens_mean']:.0f} tokens",
    ]


def as_percent(interval: Mapping[str, float]) -> str:
    """Return a value with its 95 % interval."""
    value, low, high = (interval[key] * 100 for key in ("value", "low", "high"))
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"


def _row(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _settings(results: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    hashes = ", ".join(f"{name} {value[:12]}" for name, value in results["sha256"].items())
    return (
        f"{results['samples']} answers a problem at temperature {results['temperature']:g}, at "
        f"most {results['max_new_tokens']} tokens, seed {results['seed']}; 95 % intervals by "
        f"bootstrap over problems. Data (sha256): {hashes}. {versions}."
    )
