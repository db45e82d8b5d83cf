"""
Start one SGLang server: what `python -m astraflow_sglang.launch OPTIONS` runs.

The key comes in the environment, not on the command line, which every user of the host can read.
The server ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["KEY_VARIABLE", "Secret", "main"]

KEY_VARIABLE = "ASTRAFLOW_SGLANG_KEY"
_PR_SET_PDEATHSIG = 1


class Secret(str):
    """A string that prints as stars: SGLang logs its settings."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Show stars."""
        return "'***'"


def main() -> None:
    """Run the server until it is stopped."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    settings = prepare_server_args(sys.argv[1:])
    settings.api_key = Secret(os.environ.pop(KEY_VARIABLE))
    try:
        run_server(settings)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    # Under its own name: SGLang pickles the key for its children, which import it from there.
    from astraflow_sglang import launch

    launch.main()
