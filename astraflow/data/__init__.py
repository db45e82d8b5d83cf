"""
Datasets by name, and prompts as a model reads them.

    registry.py   known sets: where they come from, their columns, licence and size
    additions.py  the built-in additions of the quickstart
    load.py       a local folder first, then the `datasets` library; rows checked one by one
    fetching.py   a loaded set as a file that is read without network
    chat.py       problem to token ids through the tokenizer's chat template
    inspection.py what is in a dataset, row by row
    overlap.py    problems that a training set shares with an evaluation set
"""

from astraflow.data.load import PromptSet, load_prompts
from astraflow.data.registry import DatasetEntry, dataset_names, find_entry

__all__ = ["DatasetEntry", "PromptSet", "dataset_names", "find_entry", "load_prompts"]
