"""The datasets that a recipe may name: hub id, columns, licence, size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    """Commit of that repository, so that a later edit there changes no result here."""

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

    prompt_style: Literal["chat", "plain"] = "chat"
    """How the problem is put: one message of a chat, followed by the recipe's instruction, or
    plain text that a model goes on with."""

    training: bool = False
    """True for a set to train on; what it shares with evaluation sets is worth a look."""


_ENTRIES = (
    DatasetEntry(
        name="deepscaler",
        training=True,
        about="DeepScaleR: about 40,000 competition problems, for training",
        license="MIT",
        hub_id="agentica-org/DeepScaleR-Preview-Dataset",
        revision="b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
        stems=("deepscaler_full",),
    ),
    DatasetEntry(
        name="gsm8k",
        training=True,
        about="GSM8K: grade-school word problems, for training",
        license="MIT",
        hub_id="openai/gsm8k",
        revision="740312add88f781978c0658806c59bc2815b9866",
        config="main",
        problem="question",
        stems=("gsm8k_train",),
    ),
    DatasetEntry(
        name="gsm8k_test",
        about="GSM8K, test split",
        license="MIT",
        hub_id="openai/gsm8k",
        revision="740312add88f781978c0658806c59bc2815b9866",
        config="main",
        split="test",
        problem="question",
    ),
    DatasetEntry(
        name="math500",
        about="MATH500: 500 problems of the MATH test split",
        license="MIT",
        hub_id="HuggingFaceH4/MATH-500",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        split="test",
        rows=500,
    ),
    DatasetEntry(
        name="aime24",
        about="AIME 2024, parts I and II",
        license="problems: Mathematical Association of America",
        hub_id="HuggingFaceH4/aime_2024",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        rows=30,
    ),
    DatasetEntry(
        name="aime25",
        about="AIME 2025, parts I and II",
        license="problems: Mathematical Association of America",
        hub_id="math-ai/aime25",
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
        split="test",
        rows=30,
    ),
    DatasetEntry(
        name="amc",
        about="AMC 12 of 2024, as the published recipes evaluate it",
        license="problems: Mathematical Association of America",
        hub_id="rawsh/2024_AMC12",
        revision="47b35303156a75cdfc6fcca694db66905d5b2033",
    ),
    DatasetEntry(
        name="amc23",
        about="AMC 12 of 2023, reworded to number answers",
        license="problems: Mathematical Association of America",
        hub_id="math-ai/amc23",
        revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
        split="test",
        problem="question",
        rows=40,
    ),
    DatasetEntry(
        name="amc83",
        about="AMC 12 of 2022 and 2023, reworded to number answers; holds amc23",
        license="problems: Mathematical Association of America",
        hub_id="AI-MO/aimo-validation-amc",
        revision="69d78a4a2c840e82d69af6bc742bda09005f6316",
        rows=83,
    ),
    DatasetEntry(
        name="minerva_math",
        about="Minerva Math: undergraduate science problems with numbers",
        license="CC BY-NC-SA 4.0 (MIT OpenCourseWare)",
        hub_id="math-ai/minervamath",
        revision="ee46ddc498933b1977577953250ca5c66be64f96",
        split="test",
        problem="question",
        rows=272,
    ),
    DatasetEntry(
        name="olympiadbench",
        about="OlympiadBench: English text-only competition problems",
        license="MIT",
        hub_id="math-ai/olympiadbench",
        revision="4faaf1e6ec17d11a4218a9bf4c049ecaf954dd84",
        split="test",
        problem="question",
        answer="final_answer",
        # no fixed size: there are copies of 674 and of 675 rows
    ),
    DatasetEntry(
        name="additions",
        training=True,
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
    DatasetEntry(
        name="sums",
        prompt_style="plain",
        training=True,
        about="the additions as plain lines, `12 + 7 =`, for a model that goes on with text",
        license="Apache-2.0",
        rows=7600,
    ),
    DatasetEntry(
        name="sums_test",
        prompt_style="plain",
        about="500 sums that training never sees",
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
