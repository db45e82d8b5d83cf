"""What tests and smoke runs need: a tiny trained model, miniatures, contracts for adapters."""

from astraflow.testing.miniature import make_miniature, miniature_rows, write_rows
from astraflow.testing.tiny import tiny_model_path

__all__ = [
    "make_miniature",
    "miniature_rows",
    "tiny_model_path",
    "write_rows",
]
