"""
All that a recipe reads, in one folder with hashes, for a machine without network.

    sources.py    where model and datasets are now, local or on a hub
    collect.py    copies them into a folder that is whole or absent
    manifest.py   bundle.json: every file with its size and hash, and what no longer agrees
"""

from astraflow.bundling.collect import make_bundle
from astraflow.bundling.manifest import MANIFEST, Fault, Manifest, find_faults, read_manifest

__all__ = ["MANIFEST", "Fault", "Manifest", "find_faults", "make_bundle", "read_manifest"]
