"""
The child's side of a check in a process of its own.

`python -m astraflow.doctor.child MODULE:FUNCTION` reads its argument as JSON from stdin and writes
one JSON object a line: a finding, or the name of the step that it begins.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict

from astraflow.doctor.finding import Finding
from astraflow.wire.events import die_with_parent

__all__ = ["main"]


def main() -> None:
    """Run one function and write what it yields."""
    die_with_parent()
    # After that, whatever a library prints goes to stderr and not among the findings.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, function = sys.argv[1].partition(":")
    argument = json.load(sys.stdin)
    for item in getattr(importlib.import_module(module), function)(argument):
        body = {"finding": asdict(item)} if isinstance(item, Finding) else {"step": item}
        replies.write(json.dumps(body) + "\n")
        replies.flush()
    replies.close()
    # The interpreter's own end stops the threads of libraries, which sometimes crash at that.
    os._exit(0)


if __name__ == "__main__":
    main()
