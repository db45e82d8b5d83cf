"""The datasets that a recipe may name: hub id, columns, licence, size."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DatasetEntry", "dataset_names", "find_entry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntry:
    """One known dataset."""

    name: str
    """What a recipe says."""

    about: str
    """One line for people."""

    license: str
    """Of the files; competition problems belong to their organizers whatever a copy says."""

    hub_id: str | None = None
    """Repository on the hub; None for a built-in set."""

    revision: str | None = None
    """Commit of that repository; None where none has been pinned yet: the one that was fetched is
    recorded by the hash of its rows."""

    config: str | None = None
    """Configuration inside the repository."""

    split: str = "train"
    """Split inside the repository."""

    problem: str = "problem"
    """Column with the question, in the repository."""

    answer: str = "answer"
    """Column with the gold answer, in the repository."""

    stems: tuple[str, ...] = ()
    """Other names that local files may have, beside ``name``."""

    rows: int | None = None
    """Exact number of problems where it is fixed (count)."""


_ENTRIES = (
    DatasetEntry(
        name="deepscaler",
        about="DeepScaleR: about 40,000 competition problems, for training",
        license="MIT",
        hub_id="agentica-org/DeepScaleR-Preview-Dataset",
        stems=("deepscaler_full",),
    ),
    DatasetEntry(
        name="gsm8k",
        about="GSM8K: grade-school word problems, for training",
        license="MIT",
        hub_id="openai/gsm8k",
        config="main",
        problem="question",
        stems=("gsm8k_train",),
    ),
    DatasetEntry(
        name="gsm8k_test",
        about="GSM8K, test split",
        license="MIT",
        hub_id="openai/gsm8k",
        config="main",
        split="test",
        problem="question",
    ),
    DatasetEntry(
        name="math500",
        about="MATH500: 500 problems of the MATH test split",
        license="MIT",
        hub_id="HuggingFaceH4/MATH-500",
        split="test",
        rows=500,
    ),
    DatasetEntry(
        name="aime24",
        about="AIME 2024, parts I and II",
        license="problems: Mathematical Association of America",
        hub_id="HuggingFaceH4/aime_2024",
        rows=30,
    ),
    DatasetEntry(
        name="aime25",
        about="AIME 2025, parts I and II",
        license="problems: Mathematical Association of America",
        hub_id="math-ai/aime25",
        split="test",
        rows=30,
    ),
    DatasetEntry(
        name="amc",
        about="AMC 12 of 2024, as the published recipes evaluate it",
        license="problems: Mathematical Association of America",
        hub_id="rawsh/2024_AMC12",
    ),
    DatasetEntry(
        name="amc23",
        about="AMC 12 of 2023, reworded to number answers",
        license="problems: Mathematical Association of America",
        hub_id="math-ai/amc23",
        split="test",
        problem="question",
        rows=40,
    ),
    DatasetEntry(
        name="amc83",
        about="AMC 12 of 2022 and 2023, reworded to number answers; holds amc23",
        license="problems: Mathematical Association of America",
        hub_id="AI-MO/aimo-validation-amc",
        rows=83,
    ),
    DatasetEntry(
        name="minerva_math",
        about="Minerva Math: undergraduate science problems with numbers",
        license="CC BY-NC-SA 4.0 (MIT OpenCourseWare)",
        hub_id="math-ai/minervamath",
        split="test",
        problem="question",
        rows=272,
    ),
    DatasetEntry(
        name="olympiadbench",
        about="OlympiadBench: English text-only competition problems",
        license="MIT",
        hub_id="math-ai/olympiadbench",
        split="test",
        problem="question",
        rows=675,
    ),
    DatasetEntry(
        name="additions",
        about="two-digit additions of the quickstart, for training",
        license="Apache-2.0",
        rows=7600,
    ),
    DatasetEntry(
        name="additions_test",
        about="500 two-digit additions that training never sees",
        license="Apache-2.0",
        rows=500,
    ),
)


def dataset_names() -> tuple[str, ...]:
    """List the names that recipes may use."""
    return tuple(entry.name for entry in _ENTRIES)


def find_entry(name: str) -> DatasetEntry | None:
    """Return a known dataset's entry; None when the name is not known."""
    return next((entry for entry in _ENTRIES if entry.name == name), None)
