"""Interim."""

from astraflow.data.load import load_prompts

__all__ = ["load_prompts"]
