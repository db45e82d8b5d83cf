"""Real runs of the quickstart in small: real processes, sockets, checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SMALL = (
    "trainer.steps=4",
    "trainer.batch_size=32",
    "algorithm.updates_per_step=2",
    "checkpoint.every_steps=1",
    "evaluation.max_rows=16",
)
_WITHIN_S = 150


@dataclass
class Run:
    """A started `astraflow run`."""

    process: subprocess.Popen[bytes]
    runs: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.runs / self.name / "latest"

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def until(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for an event, with a deadline; the run must not end before it."""
        give_up = time.monotonic() + _WITHIN_S
        while time.monotonic() < give_up:
            for event in self.events():
                if found(event):
                    return event
            ended = self.process.poll()
            assert ended is None, f"the run ended with {ended}:\n{self.output()}"
            time.sleep(0.05)
        raise AssertionError(f"no such event within {_WITHIN_S} s:\n{self.output()}")

    def until_step(self, step: int) -> None:
        self.until(lambda event: event.get("event") == "step" and event["step"] >= step)

    def pid_of(self, role: str) -> int:
        return int(self.until(lambda e: e["event"] == "started" and e["role"] == role)["pid"])

    def wait(self) -> int:
        return self.process.wait(_WITHIN_S)

    def output(self) -> str:
        return (self.runs / f"{self.name}.out").read_text()

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "summary.json").read_text()))

    def processes(self) -> list[int]:
        """Every living process of this run, found by the run folder in its command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if str(self.runs).encode() in command and state != "Z":
                found.append(int(entry.name))
        return found

    def until_gone(self) -> None:
        give_up = time.monotonic() + 20
        while self.processes() and time.monotonic() < give_up:
            time.sleep(0.05)
        assert self.processes() == []


def join(run: str, *, runs: Path, token: str = "") -> subprocess.Popen[str]:
    """Start an instance that joins a living run, by its folder or its dataflow's address."""
    command = [sys.executable, "-m", "astraflow", "serve", "raas", "--join", run]
    return subprocess.Popen(
        [*command, "--runs", str(runs)],
        env={**os.environ, "ASTRAFLOW_TOKEN": token},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start runs of the quickstart in small; whatever is left of them afterwards is killed."""
    started: list[Run] = []

    def start_run(*options: str, sets: tuple[str, ...] = (), name: str = "quickstart") -> Run:
        overrides = [part for value in (*_SMALL, *sets) for part in ("--set", value)]
        command = [
            sys.executable, "-m", "astraflow", "run", "quickstart", "--plain",
            "--runs", str(tmp_path), "--name", name, *overrides, *options,
        ]  # fmt: skip
        with (tmp_path / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )
        run = Run(process, tmp_path, name)
        started.append(run)
        return run

    yield start_run
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.wait(10)
        for pid in run.processes():
            os.kill(pid, signal.SIGKILL)
