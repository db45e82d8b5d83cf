"""One log format for every role and rank: time, level, role, message; on stderr, without color."""

from __future__ import annotations

import logging
import re
import sys

__all__ = ["configure", "hide_secrets"]

# Anything that looks like a hub or tracker key; a log must never hold one.
_SECRET = re.compile(r"\b(hf_[A-Za-z0-9]{20,}|[0-9a-f]{40})\b")


def hide_secrets(text: str) -> str:
    """Put a word in the place of whatever looks like a key."""
    return _SECRET.sub("(hidden)", text)


class _HideSecrets(logging.Formatter):
    """Hides at the very end, so that tracebacks are covered too."""

    def format(self, record: logging.LogRecord) -> str:
        return hide_secrets(super().format(record))


def configure(role: str) -> None:
    """Send the process's log lines to stderr, which the supervisor keeps in the role's file."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _HideSecrets(f"%(asctime)s %(levelname)-7s {role} %(name)s: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("httpx", "httpcore", "uvicorn.access", "filelock", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
