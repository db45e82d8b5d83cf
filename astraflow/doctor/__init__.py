"""
Is this machine fit for a run? Every check says ok, warn, fail or skipped, and names the cure.

    finding.py      what a check yields, and what it is given
    deadline.py     one check within its time
    isolation.py    checks in a process of their own; child.py and rank.py are its other side
    machine.py, storage.py, network.py      the host
    libraries.py, grader.py                 what is installed, and the grader at work
    compute.py, attention.py, gated_delta.py, collectives.py, numbers.py    torch, executed
    inputs.py       what a recipe reads
    bundle.py       a bundle's files against their hashes
"""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.doctor.bundle import BUNDLE_S, examine_bundle
from astraflow.doctor.compute import COMPUTE_S, examine_compute
from astraflow.doctor.deadline import perform
from astraflow.doctor.finding import Check, Finding, Subject
from astraflow.doctor.grader import examine_grader
from astraflow.doctor.inputs import examine_datasets, examine_model, examine_tokenizer
from astraflow.doctor.libraries import examine_adapters, examine_antlr, examine_libraries
from astraflow.doctor.machine import (
    examine_clock,
    examine_gpus,
    examine_limits,
    examine_memory,
    examine_processors,
    examine_python,
)
from astraflow.doctor.network import examine_loopback, examine_ports, examine_proxies
from astraflow.doctor.storage import examine_run_folder, examine_shared_memory

__all__ = ["CHECKS", "Finding", "Subject", "examine"]

CHECKS = (
    Check(name="python", run=examine_python),
    Check(name="libraries", run=examine_libraries),
    Check(name="antlr runtime", run=examine_antlr),
    Check(name="adapters", run=examine_adapters),
    Check(name="processors", run=examine_processors),
    Check(name="memory", run=examine_memory),
    Check(name="GPUs", run=examine_gpus),
    Check(name="limits", run=examine_limits),
    Check(name="clock", run=examine_clock),
    Check(name="/dev/shm", run=examine_shared_memory),
    Check(name="run folder", run=examine_run_folder),
    Check(name="loopback", run=examine_loopback),
    Check(name="ports", run=examine_ports),
    Check(name="proxies", run=examine_proxies),
    Check(name="grader", run=examine_grader),
    Check(name="bundle", run=examine_bundle, within_s=BUNDLE_S),
    Check(name="model", run=examine_model),
    Check(name="tokenizer", run=examine_tokenizer, within_s=60.0),
    Check(name="datasets", run=examine_datasets, within_s=120.0),
    Check(name="torch", run=examine_compute, within_s=COMPUTE_S + 15.0),
)
"""In the order of the table."""


def examine(subject: Subject) -> Iterator[Finding]:
    """Run every check, one after another, and yield findings as they come."""
    for check in CHECKS:
        yield from perform(check, subject)
