"""Answers: requests in flight, which server has each, and which version drew which token."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from astraflow.errors import AstraFlowError
from astraflow.records import PolicyVersion, SampleRequest

__all__ = ["Answer", "Answers", "read_reply"]


class Answer:
    """
    One request in flight.

    Args:
        request: What is asked for.
        request_id: Its name in the server; a retry has another.
        server: Index of the server.
        version: Version at its start.
    """

    def __init__(
        self, request: SampleRequest, request_id: str, server: int, version: PolicyVersion
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.server = server
        self._start = version
        self._newest = version
        self._until: list[tuple[int, PolicyVersion]] = []

    def note_swap(self, tokens: int, old: PolicyVersion, new: PolicyVersion) -> None:
        """
        Note that the weights changed.

        Args:
            tokens: Tokens drawn before (count).
            old: The version before.
            new: The version from here on.
        """
        self._until.append((tokens, old))
        self._newest = new

    def versions(self, count: int) -> tuple[PolicyVersion, ...]:
        """Return ``[count]``, the version that drew each token."""
        drawn: list[PolicyVersion] = []
        for tokens, version in self._until:
            drawn += [version] * (min(tokens, count) - len(drawn))
        drawn += [self._newest] * (count - len(drawn))
        return tuple(drawn)

    def body(self) -> dict[str, Any]:
        """Return the body of SGLang's `/generate`."""
        request = self.request
        return {
            "rid": self.request_id,
            "input_ids": list(request.prompt_ids),
            "sampling_params": {
                "max_new_tokens": request.max_new_tokens,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "stop_token_ids": list(request.stop_ids),
                "sampling_seed": request.seed % 2**31,
            },
            "return_logprob": True,
            "logprob_start_len": -1,
            # A prefix that older weights computed is not taken for a new request.
            "extra_key": f"v{self._start}",
        }


class Answers:
    """
    Every request in flight.

    Args:
        servers: Copies of the model (count).
    """

    def __init__(self, servers: int) -> None:
        self._open: dict[str, Answer] = {}
        self._loads = [0] * servers
        self._groups: dict[str, tuple[int, int]] = {}
        self._numbers = itertools.count()

    @contextmanager
    def open(self, request: SampleRequest, version: PolicyVersion) -> Iterator[Answer]:
        """Choose a server for a request and count it there while the block runs."""
        server = self._choose(request)
        name = f"{request.request_id}-{next(self._numbers)}"
        answer = Answer(request, name, server, version)
        self._open[name] = answer
        self._loads[server] += 1
        try:
            yield answer
        finally:
            self._loads[server] -= 1
            del self._open[name]

    def note_swap(
        self, server: int, old: PolicyVersion, new: PolicyVersion, reached: Mapping[str, int]
    ) -> None:
        """
        Note new weights in one server.

        Args:
            server: Its index.
            old: The version before.
            new: The version from here on.
            reached: Tokens of each request that the server knew (count).
        """
        for answer in self._open.values():
            if answer.server == server:
                # A request that the server does not know has not begun.
                answer.note_swap(reached.get(answer.request_id, 0), old, new)

    def _choose(self, request: SampleRequest) -> int:
        """Send a group to one server, which then prefills its prompt once."""
        server, left = self._groups.pop(request.group_id, (-1, request.group_size))
        if server < 0:
            server = min(range(len(self._loads)), key=self._loads.__getitem__)
        if left > 1:
            self._groups[request.group_id] = (server, left - 1)
        return server


def read_reply(reply: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...], str]:
    """
    Read SGLang's reply.

    Returns:
        ``[answer]`` token ids and log-probabilities (nats); ``stop`` or ``length``.

    Raises:
        AstraFlowError: the server gave the answer up.
    """
    meta = reply["meta_info"]
    finish = meta["finish_reason"] or {}
    if finish.get("type") not in ("stop", "length"):
        raise AstraFlowError(f"the server gave an answer up: {collections.ChainMap(finish)!s:.300}")
    drawn = meta["output_token_logprobs"]
    ids = tuple(int(token) for _, token, *_ in drawn)
    logprobs = tuple(float(logprob) for logprob, *_ in drawn)
    return ids, logprobs, str(finish["type"])
