"""The token of a run: made by the supervisor, asked for on every endpoint and connection."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from astraflow.errors import WireError

__all__ = [
    "TOKEN_FILE",
    "TOKEN_VARIABLE",
    "authorized",
    "new_token",
    "read_token",
    "run_id_of",
]

TOKEN_VARIABLE = "ASTRAFLOW_TOKEN"
TOKEN_FILE = "token"


def new_token() -> str:
    """Make a token of 256 random bits, in URL-safe text."""
    return secrets.token_urlsafe(32)


def authorized(offered: str, token: str) -> bool:
    """Compare in constant time, so that a guess learns nothing from the answer's delay."""
    return hmac.compare_digest(offered.encode(), token.encode())


def run_id_of(run_folder: Path) -> str:
    """Return ``NAME/N``, which weight connections are checked for."""
    folder = run_folder.resolve()
    return f"{folder.parent.name}/{folder.name}"


def read_token(run_folder: Path) -> str:
    """
    Return the run's token from the environment, else from the run folder.

    Raises:
        WireError: there is neither.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token:
        return token
    try:
        return (run_folder / TOKEN_FILE).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise WireError(
            f"no token for the run in `{run_folder}`",
            hint=f"set {TOKEN_VARIABLE}, or start the role with the run folder of a live run",
        ) from error
