"""The SGLang adapter without SGLang: what it asks, what it reads, how it talks to a worker."""

from __future__ import annotations

import asyncio
import base64
import mmap
import os
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from astraflow.errors import AstraFlowError, ProofError, StaleBaseError, WireError
from astraflow.interfaces import Encoding, Shard, TensorPatch, TensorSpec, WeightUpdate
from astraflow.recipe.files import read_recipe
from astraflow.records import PolicyVersion, SampleRequest
from astraflow.testing.miniature import make_miniature
from astraflow.weights.apply import apply_patches
from astraflow.weights.hashes import segment_hash, segment_hashes
from astraflow.weights.host_bits import HostBits
from astraflow_sglang import plugin
from astraflow_sglang.answers import Answers, read_reply
from astraflow_sglang.control import MAILBOX_BYTES, Answer, Control, Mailbox, Order, Progress, State
from astraflow_sglang.launch import Secret
from astraflow_sglang.mapping import find_tensors
from astraflow_sglang.server import _pickled
from astraflow_sglang.weights import ServedWeights


def _request(group: str = "g", size: int = 1) -> SampleRequest:
    return SampleRequest(
        request_id=f"{group}.0", group_id=group, group_size=size, prompt_ids=(5, 6),
        max_new_tokens=9, temperature=0.7, seed=3, stop_ids=(2,),
    )  # fmt: skip


# --- answers


def test_each_token_has_the_version_that_drew_it() -> None:
    answers = Answers(1)
    with answers.open(_request(), PolicyVersion(4)) as answer:
        answers.note_swap(0, PolicyVersion(4), PolicyVersion(5), {answer.request_id: 2})
        answers.note_swap(0, PolicyVersion(5), PolicyVersion(7), {answer.request_id: 3})
        assert answer.versions(6) == (4, 4, 5, 7, 7, 7)
        assert answer.versions(1) == (4,)


def test_an_answer_that_the_server_does_not_know_yet_is_drawn_by_the_new_version() -> None:
    answers = Answers(2)
    with answers.open(_request(), PolicyVersion(0)) as answer:
        answers.note_swap(1 - answer.server, PolicyVersion(0), PolicyVersion(9), {})
        answers.note_swap(answer.server, PolicyVersion(0), PolicyVersion(1), {})
        assert answer.versions(2) == (1, 1)


def test_a_group_stays_on_one_server_and_groups_spread() -> None:
    answers = Answers(2)
    with (
        answers.open(_request("a", 2), PolicyVersion(0)) as first,
        answers.open(_request("b", 1), PolicyVersion(0)) as other,
        answers.open(_request("a", 2), PolicyVersion(0)) as second,
    ):
        assert first.server == second.server != other.server
        assert first.request_id != second.request_id


def test_a_request_names_its_version_so_that_no_older_prefix_is_taken() -> None:
    with Answers(1).open(_request(), PolicyVersion(3)) as answer:
        body = answer.body()
    assert body["extra_key"] == "v3"
    assert body["input_ids"] == [5, 6]
    assert body["sampling_params"]["stop_token_ids"] == [2]
    assert body["sampling_params"]["temperature"] == 0.7


def test_a_reply_gives_ids_and_log_probabilities_and_an_aborted_one_is_an_error() -> None:
    meta = {
        "finish_reason": {"type": "length", "length": 2},
        "output_token_logprobs": [[-0.5, 17, None], [-1.5, 2, None]],
    }
    assert read_reply({"meta_info": meta}) == ((17, 2), (-0.5, -1.5), "length")
    meta["finish_reason"] = {"type": "abort", "message": "out of memory"}
    with pytest.raises(AstraFlowError, match="out of memory"):
        read_reply({"meta_info": meta})


# --- settings


def _problem(*overrides: str) -> str:
    from astraflow.plugins import recipe_type

    base = ("rollout.backend=sglang", "rollout.gpus=2", "rollout.data_parallel=2")
    reading = read_recipe("quickstart", [*base, *overrides], recipe_type=recipe_type())
    assert reading.resolved is not None, [str(p) for p in reading.problems]
    assert plugin.refuses is not None
    return plugin.refuses(reading.resolved.recipe)


def test_tensor_parallelism_and_options_of_ours_are_refused() -> None:
    assert _problem() == ""
    assert "tensor_parallel is 2" in _problem("rollout.tensor_parallel=2")
    assert "`model_path`" in _problem("rollout.sglang.server_args={model_path: x}")


def test_the_key_of_a_server_prints_as_stars() -> None:
    assert repr(Secret("abc")) == "'***'"
    assert Secret("abc") == "abc"


def test_the_control_line_is_one_named_tensor_of_bytes() -> None:
    ((name, content),) = pickle.loads(base64.b64decode(_pickled("hello")))
    assert name == "control"
    assert bytes(content.numpy()) == b"hello"


# --- where tensors are


def test_stacked_parameters_hold_their_parts_by_rows_and_padding_is_left_alone() -> None:
    q, k, v = torch.ones(4, 3), torch.ones(2, 3) * 2, torch.ones(2, 3) * 3
    embedding = torch.zeros(8, 3)
    parameters = {
        "model.layers.0.self_attn.qkv_proj.weight": torch.cat([q, k, v]).bfloat16(),
        "model.embed_tokens.weight": embedding.bfloat16(),
    }
    names = {part: f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"}
    shapes = {names["q"]: (4, 3), names["k"]: (2, 3), names["v"]: (2, 3)}
    found, unmapped = find_tensors(parameters, shapes | {"model.embed_tokens.weight": (7, 3)})
    assert not unmapped
    assert [float(found[names[part]].mean()) for part in "qkv"] == [1, 2, 3]
    found["model.embed_tokens.weight"].fill_(1)
    assert parameters["model.embed_tokens.weight"].sum(1).tolist() == [3] * 7 + [0]


def test_what_has_no_place_is_named_with_the_reason() -> None:
    parameters = {"a": torch.zeros(2, 2), "b": torch.zeros(2, 2, dtype=torch.bfloat16)}
    _, unmapped = find_tensors(parameters, {"a": (2, 2), "b": (3, 2), "c": (1,)})
    assert ["float32" in unmapped[0], "does not fit" in unmapped[1], "no `c`" in unmapped[2]] == [
        True, True, True,
    ]  # fmt: skip


# --- the mailbox


class _Worker:
    """A stand-in for SGLang's worker: serves the mailbox in a thread, with the CPU's codec."""

    name = "sglang-0"

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.damage = False
        self.dead = False
        self._names: list[str] = []
        self._box: Mailbox | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def require_alive(self) -> None:
        if self.dead:
            raise AstraFlowError("the SGLang server sglang-0 ended")

    async def run_loader(self, line: str) -> None:
        control = msgspec.json.decode(line, type=Control)
        descriptor = os.open(control.mailbox, os.O_RDWR)
        self._box = Mailbox(mmap.mmap(descriptor, MAILBOX_BYTES))
        os.close(descriptor)
        order = msgspec.msgpack.decode(self._box.take(), type=Order)
        self._names = [tensor.name for tensor in order.tensors]
        hashes = segment_hashes([self.tensors[name] for name in self._names])
        self._box.put(msgspec.msgpack.encode(Answer(hashes=tuple(hashes))))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        assert self._box is not None
        turns = {State.HOLD: State.HELD, State.RELEASE: State.RUNNING}
        while not self._stop.wait(0.0005):
            state = self._box.state
            if state == State.ORDER and not self.dead:
                order = msgspec.msgpack.decode(self._box.take(), type=Order)
                self._box.put(msgspec.msgpack.encode(self._install(order)))
                self._box.state = State.ANSWERED
            elif state in turns and not self.dead:
                self._box.state = turns[State(state)]

    def _install(self, order: Order) -> Answer:
        content = Path(order.path).read_bytes()
        targets, patches = [], []
        for piece in order.pieces:
            name = self._names[piece.tensor]
            targets.append(self.tensors[name].view(-1)[piece.first : piece.first + piece.count])
            patches.append(
                TensorPatch(
                    spec=TensorSpec(name=name, dtype="BF16", shape=()),
                    first=piece.first,
                    count=piece.count,
                    encoding=Encoding(piece.encoding),
                    payload=memoryview(content[piece.offset : piece.offset + piece.size]),
                    base_hash=0,
                    target_hash=piece.target_hash,
                )
            )
        wrong = apply_patches(targets, patches)
        if self.damage:
            targets[0].view(torch.int16)[0] ^= 1
            wrong = [0]
        return Answer(wrong=tuple(wrong), progress=(Progress("r", 5),))


class _Trainer:
    """Weights of a checkpoint that change, and the updates to them."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self._bits = HostBits(self._shards())
        self._rng = np.random.default_rng(0)

    def update(self, version: int) -> WeightUpdate:
        bases = self._bits.hashes()
        for tensor in self.tensors.values():
            flips = self._rng.random(tensor.numel()) < 0.03
            tensor.view(-1).view(torch.int16)[torch.from_numpy(flips)] ^= 1
        encoded = self._bits.encode(self._bits.advance(self._shards()))
        patches = tuple(
            TensorPatch(
                spec=shard.spec, first=0, count=shard.values.numel(), encoding=encoding,
                payload=memoryview(bytes(payload)), base_hash=base, target_hash=target,
            )
            for shard, (encoding, payload), base, target in zip(
                self._shards(), encoded, bases, self._bits.hashes(), strict=True
            )
        )  # fmt: skip
        return WeightUpdate(
            version=PolicyVersion(version), base=PolicyVersion(version - 1), patches=patches,
            wire_bytes=0,
        )  # fmt: skip

    def _shards(self) -> list[Shard]:
        return [
            Shard(
                spec=TensorSpec(name=name, dtype="BF16", shape=tuple(tensor.shape)),
                first=0,
                values=tensor.reshape(-1),
            )
            for name, tensor in self.tensors.items()
        ]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_miniature("qwen3", tmp_path / "m", seed=1, tie=True, dtype="bfloat16")


@pytest.fixture
def worker(checkpoint: Path) -> Iterator[_Worker]:
    worker = _Worker(load_file(next(checkpoint.glob("*.safetensors"))))
    yield worker
    worker.stop()


def _served(checkpoint: Path, worker: _Worker) -> ServedWeights:
    context: Any = SimpleNamespace(model_path=str(checkpoint), dtype="bfloat16")
    servers: Any = [worker]
    return ServedWeights(context, servers)


async def _swap(served: ServedWeights, update: WeightUpdate) -> list[dict[str, int]]:
    served.prepare(update)
    await served.hold()
    try:
        return await served.install(update)
    finally:
        await served.release()


async def test_updates_land_in_the_worker_and_tell_how_far_answers_were(
    checkpoint: Path, worker: _Worker
) -> None:
    trainer, served = _Trainer(worker.tensors), _served(checkpoint, worker)
    await served.find()
    for version in (1, 2, 3):
        assert await _swap(served, trainer.update(version)) == [{"r": 5}]
        assert served.version == version
    for name, tensor in trainer.tensors.items():
        assert segment_hash(worker.tensors[name]) == segment_hash(tensor)
    served.close()


async def test_a_worker_with_other_bits_than_the_checkpoint_is_refused_by_name(
    checkpoint: Path, worker: _Worker
) -> None:
    name = "model.norm.weight"
    worker.tensors[name].view(torch.int16)[0] ^= 1
    served = _served(checkpoint, worker)
    with pytest.raises(AstraFlowError, match=f"{name}: other bits than in the checkpoint"):
        await served.find()
    served.close()


async def test_a_failed_proof_keeps_the_version_and_names_the_tensor(
    checkpoint: Path, worker: _Worker
) -> None:
    trainer, served = _Trainer(worker.tensors), _served(checkpoint, worker)
    await served.find()
    worker.damage = True
    with pytest.raises(ProofError):
        await _swap(served, trainer.update(1))
    assert served.version == 0
    assert len(served.unproved) == 1
    served.close()


async def test_a_delta_on_other_weights_is_refused_before_anything_is_written(
    checkpoint: Path, worker: _Worker
) -> None:
    trainer, served = _Trainer(worker.tensors), _served(checkpoint, worker)
    await served.find()
    trainer.update(1)  # never comes
    before = segment_hashes(list(worker.tensors.values()))
    with pytest.raises(StaleBaseError):
        await _swap(served, trainer.update(2))
    # the version number fits, the bits do not
    late = trainer.update(1)
    with pytest.raises(StaleBaseError, match="other bits"):
        await _swap(served, late)
    assert segment_hashes(list(worker.tensors.values())) == before
    served.close()


async def test_an_unknown_tensor_is_refused_while_sampling_goes_on(
    checkpoint: Path, worker: _Worker
) -> None:
    trainer, served = _Trainer(worker.tensors), _served(checkpoint, worker)
    await served.find()
    update = trainer.update(1)
    strange = update.patches[0]
    spec = TensorSpec(name="model.layers.9.strange", dtype="BF16", shape=strange.spec.shape)
    with pytest.raises(WireError, match="strange"):
        served.prepare(replace(update, patches=(replace(strange, spec=spec),)))
    served.close()


async def test_a_worker_that_has_ended_is_noticed_while_it_is_waited_for(
    checkpoint: Path, worker: _Worker
) -> None:
    served = _served(checkpoint, worker)
    await served.find()
    worker.dead = True
    started = time.monotonic()
    with pytest.raises(AstraFlowError, match="ended"):
        await asyncio.wait_for(served.hold(), 5)
    assert time.monotonic() - started < 5
    served.close()
