"""The command line: one file a command; heavy imports happen inside functions."""

from astraflow.cli.main import main

__all__ = ["main"]
