"""Lets `python -m astraflow` do what `astraflow` does."""

from astraflow.cli import main

main()
