"""What is in a dataset, counted row by row without stopping at the first bad one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from astraflow.data.load import answer_text, check_columns, load_prompts, open_rows
from astraflow.data.registry import find_entry
from astraflow.records import Prompt

__all__ = ["Inspection", "Lengths", "inspect_dataset", "measure_lengths"]

_BOUNDS = {
    "tokens": (32, 64, 128, 256, 512, 1024, 2048),
    "characters": (125, 250, 500, 1000, 2000, 4000),
}


@dataclass(kw_only=True)
class Inspection:
    """Counts over all rows of a dataset."""

    name: str
    """Known name or path."""

    source: str
    """Path, hub id or ``built in``."""

    rows: int = 0
    """All rows, bad ones too (count)."""

    expected_rows: int | None = None
    """What a known set must have (count)."""

    empty_problems: list[int] = field(default_factory=list)
    """Row numbers, from 1."""

    empty_answers: list[int] = field(default_factory=list)
    """Row numbers, from 1."""

    duplicates: list[int] = field(default_factory=list)
    """Row numbers of problems that stood before with the same answer."""

    contradictions: list[int] = field(default_factory=list)
    """Row numbers of problems that stood before with another answer."""

    prompts: list[Prompt] = field(default_factory=list)
    """What is left for use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long prompts are."""

    unit: str
    """``tokens`` or ``characters``."""

    histogram: dict[str, int]
    """Prompts by length."""

    median: int
    """Half of the prompts are at most this long."""

    longest: int
    """The longest prompt."""


def inspect_dataset(name: str, *, root: Path | None = None) -> Inspection:
    """
    Look at every row of a dataset.

    Raises:
        DataError: it is absent, or lacks a column.
    """
    entry = find_entry(name)
    if entry is not None and entry.hub_id is None:
        built_in = load_prompts(name)
        return Inspection(
            name=name,
            source=built_in.source,
            rows=len(built_in.prompts),
            expected_rows=entry.rows,
            prompts=list(built_in.prompts),
        )
    found = open_rows(name, root=root)
    columns = found.columns
    result = Inspection(name=name, source=found.source, expected_rows=entry.rows if entry else None)
    answers: dict[str, str] = {}
    for number, row in enumerate(found.rows, start=1):
        check_columns(row, columns, where=f"row {number} of `{found.source}`")
        problem = str(row[columns.problem] or "").strip()
        answer = answer_text(row[columns.answer], name)
        result.rows += 1
        if not problem:
            result.empty_problems.append(number)
        elif not answer:
            result.empty_answers.append(number)
        elif problem in answers:
            same = answers[problem] == answer
            (result.duplicates if same else result.contradictions).append(number)
        else:
            answers[problem] = answer
            key = row.get(columns.id) if columns.id else None
            ident = str(key) if key is not None else f"{Path(name).stem}-{number}"
            result.prompts.append(Prompt(id=ident, problem=problem, answer=answer, dataset=name))
    return result


def measure_lengths(
    prompts: Sequence[Prompt], *, unit: str, length: Callable[[str], int]
) -> Lengths:
    """
    Count prompts by length.

    Args:
        prompts: At least one.
        unit: ``tokens`` or ``characters``; decides the bounds of the histogram.
        length: Length of a problem in that unit.
    """
    lengths = sorted(length(prompt.problem) for prompt in prompts)
    bounds = _BOUNDS[unit]
    counts = Counter(sum(value >= bound for bound in bounds) for value in lengths)
    labels = [
        f"below {bounds[0]}",
        *(f"{low} to {high - 1}" for low, high in zip(bounds, bounds[1:], strict=False)),
        f"from {bounds[-1]}",
    ]
    return Lengths(
        unit=unit,
        histogram={label: counts[place] for place, label in enumerate(labels)},
        median=lengths[(len(lengths) - 1) // 2],
        longest=lengths[-1],
    )
