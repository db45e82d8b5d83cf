"""Write a loaded dataset as a local file, which is then read without network."""

from __future__ import annotations

import json
from pathlib import Path

from astraflow.data.load import PromptSet

__all__ = ["write_prompts"]


def write_prompts(loaded: PromptSet, root: Path) -> Path:
    """
    Write `NAME.jsonl`, and `NAME.source.json` with where it came from; return the former.

    Read back, the file gives the same ids, problems and answers, so the same hash.
    """
    path = root / f"{loaded.name}.jsonl"
    scratch = path.with_suffix(".tmp")
    with scratch.open("w", encoding="utf-8") as file:
        for prompt in loaded.prompts:
            row = {"id": prompt.id, "problem": prompt.problem, "answer": prompt.answer}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    scratch.rename(path)
    origin = {"source": loaded.source, "rows": len(loaded.prompts), "sha256": loaded.sha256}
    (root / f"{loaded.name}.source.json").write_text(json.dumps(origin, indent=2) + "\n", "utf-8")
    return path
