"""
Every shipped recipe, broken in many ways: each is told at its line, and none crashes.

One test breaks keys and types, where every key is written down; the other combines values that
are each right alone and impossible, useless or surely wrong together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from astraflow.plugins import recipe_type
from astraflow.recipe.files import list_recipes, load_recipe
from astraflow.recipe.origins import explain_values
from astraflow.recipe.reading import read_yaml
from astraflow.recipe.schema import Recipe
from astraflow.supervisor.preflight import inspect_recipe

_LINE = re.compile(r"( *)(\w+):(?: (.*?))?(?: +# .*)?$")


def _mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line, what was done, text)``: keys misspelled, values of a wrong type or size."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        found = _LINE.match(line)
        assert found is not None, line
        indent, key, value = found.groups()

        def mutant(changed: str, number: int = number) -> str:
            return "\n".join([*lines[:number], changed, *lines[number + 1 :]]) + "\n"

        typo = key[:-1] + "qz"
        yield (
            number + 1,
            f"{key} misspelled",
            mutant(f"{indent}{typo}:{' ' + value if value else ''}"),
        )
        if value is None:
            continue  # a section: what is below it would no longer be YAML
        for wrong in _wrong(json.loads(value)):
            if (key, wrong) == ("id", "null"):
                continue  # numbers the rows
            yield number + 1, f"{key} = {wrong}", mutant(f"{indent}{key}: {wrong}")


def _wrong(value: object) -> Iterator[str]:
    """Yield values that no field of the same kind takes."""
    yield '{"a": {"b": 1}}' if not isinstance(value, dict) else "[[1]]"
    if isinstance(value, bool):
        yield "yes"  # text in YAML 1.2
    elif isinstance(value, (int, float)):
        yield "-987654"
        yield f'"{value}"'
    elif isinstance(value, str):
        yield "7"
        yield "null"


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_every_mutant_is_refused_at_its_line(path: Path, tmp_path: Path) -> None:
    explained = explain_values(load_recipe(str(path), recipe_type=recipe_type()))
    file = tmp_path / "mutant.yaml"
    file.write_text(explained, encoding="utf-8")
    assert inspect_recipe(str(file)).errors == ()
    # With the defaults written down too, every key there is can be broken.
    text = re.sub(r"^( *)# (?=\w+:)", r"\1", explained, flags=re.MULTILINE)
    mutants = list(_mutants(text))
    assert len(mutants) >= 60
    # All of the quickstart; of the others, which share its schema, a third each in turns.
    offset = len(path.stem) % 3
    chosen = mutants if path.stem == "quickstart" else mutants[offset::3]
    for line, done, mutated in chosen:
        file.write_text(mutated, encoding="utf-8")
        errors = inspect_recipe(str(file)).errors
        places = [error.where for error in errors]
        assert any(f"mutant.yaml:{line}:" in place for place in places), (done, places)


def _always(recipe: Recipe) -> bool:
    return True


def _on_gpus(recipe: Recipe) -> bool:
    return recipe.trainer.gpus > 0


def _on_cpu(recipe: Recipe) -> bool:
    return recipe.trainer.gpus == 0


def _separate(recipe: Recipe) -> bool:
    return _on_gpus(recipe) and not recipe.trainer.shares_gpus


def _large(recipe: Recipe) -> bool:
    return recipe.model.path.startswith(("Qwen/", "meta-llama/"))


def _delta(recipe: Recipe) -> bool:
    return recipe.weights.mode == "delta"


def _full(recipe: Recipe) -> bool:
    return recipe.weights.mode == "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    text: str
    """Laid over the recipe."""
    words: str
    """Of the finding."""
    path: str
    """What the finding is about: its place, or a value whose place it shows."""
    where: Callable[[Recipe], bool] = _always
    """The recipes that it breaks."""


def _change(text: str, words: str, path: str, where: Callable[[Recipe], bool] = _always) -> _Change:
    return _Change(text=text, words=words, path=path, where=where)


_IMPOSSIBLE = (
    # --- lengths
    _change("model: {context_length: 16}", "and the context holds 16", "model.context_length"),
    _change("rollout: {max_new_tokens: 99999}", "and the context holds", "rollout.max_new_tokens"),
    _change("data: {max_prompt_tokens: 99999}", "and the context holds", "data.max_prompt_tokens"),
    _change(
        "evaluation: {max_new_tokens: 99999}", "an evaluation answer", "evaluation.max_new_tokens"
    ),
    _change("trainer: {tokens_per_microbatch: 16}", "a micro-batch holds 16",
            "trainer.tokens_per_microbatch"),
    _change("model: {context_length: 9000000}", "RoPE scaling", "model.context_length"),
    _change("data: {max_prompt_tokens: 1}\nworkflow: {instruction: add these two}",
            "no prompt has room", "data.max_prompt_tokens"),
    _change("rollout: {request_timeout_s: 0.001}", "even at 1000 tokens/s",
            "rollout.request_timeout_s"),
    _change("trainer: {tokens_per_microbatch: 9999999}", "memory is not bounded",
            "trainer.tokens_per_microbatch"),
    _change("rollout: {max_new_tokens: 2}\nworkflow: {answer: boxed}", "fits in an answer of 2",
            "rollout.max_new_tokens"),
    # --- batches
    _change("trainer: {batch_size: 250}", "whole groups of 8", "trainer.batch_size"),
    _change("trainer: {batch_size: 4}", "whole groups of 8", "trainer.batch_size"),
    _change("rollout: {samples_per_prompt: 7}", "whole groups of 7", "rollout.samples_per_prompt"),
    _change("rollout: {samples_per_prompt: 1}", "at least 2", "rollout.samples_per_prompt"),
    _change("algorithm: {updates_per_step: 7}", "7 equal mini-batches",
            "algorithm.updates_per_step"),
    _change("algorithm: {updates_per_step: 64}", "optimizer steps old",
            "algorithm.updates_per_step"),
    _change("trainer: {batch_size: 8}\nalgorithm: {updates_per_step: 8}", "leaves some of 4 ranks",
            "trainer.batch_size", lambda recipe: recipe.trainer.gpus == 4),
    _change("trainer: {cpu_ranks: 64, batch_size: 32}", "leaves some of 64 ranks",
            "trainer.cpu_ranks", _on_cpu),
    _change("rollout: {max_concurrent_samples: 4}", "a group of 8 never completes",
            "rollout.max_concurrent_samples"),
    _change("rollout: {max_concurrent_samples: 8}", "rounds of sampling",
            "rollout.max_concurrent_samples"),
    _change("rollout: {max_concurrent_samples: 99999}", "the others wait and grow stale",
            "rollout.max_concurrent_samples"),
    _change("rollout: {sglang: {max_running_requests: 4}}", "a group of 8 never completes",
            "rollout.sglang.max_running_requests", _on_gpus),
    _change("rollout: {sglang: {max_running_requests: 99999}}", "staleness admits",
            "rollout.sglang.max_running_requests", _on_gpus),
    _change("rollout: {transformers: {max_batch: 4}}", "a group of 8 never completes",
            "rollout.transformers.max_batch", _on_cpu),
    _change("data: {max_rows: 3}", "some prompts more than once", "data.max_rows"),
    _change("dataflow: {max_staleness: 1024}", "nothing bounds staleness",
            "dataflow.max_staleness"),
    # --- GPUs
    _change("rollout: {gpus: 3}", "`rollout.gpus` is 3", "rollout.gpus", _on_gpus),
    _change("rollout: {gpus: 0}", "SGLang needs a GPU", "rollout.gpus", _on_gpus),
    _change("rollout: {data_parallel: 3}", "3 copies on 1 GPU(s)", "rollout.data_parallel",
            _on_gpus),
    _change("rollout: {tensor_parallel: 2}", "copies on 2 GPU(s)", "rollout.tensor_parallel",
            _on_gpus),
    _change("rollout: {tensor_parallel: 7}", "attention heads cannot be split over 7 GPUs",
            "rollout.tensor_parallel"),
    _change("rollout: {tensor_parallel: 3, data_parallel: 1, gpus: 3}", "over 3 GPUs",
            "rollout.tensor_parallel", _large),
    _change("rollout: {instances: 3}", "cannot be shared evenly by 3", "rollout.instances",
            _on_gpus),
    _change("trainer: {gpus: 0}", "billion weights on the CPU", "trainer.gpus", _large),
    _change("trainer: {gpus: 64}", "most hosts have 8", "trainer.gpus", _separate),
    _change("trainer: {shares_gpus: true, gpus: 64}", "cannot share", "trainer.gpus"),
    _change("trainer: {shares_gpus: true}", "which leaves 20% to the trainer",
            "trainer.shares_gpus", _separate),
    _change("trainer: {cpu_ranks: 2}", "each GPU has one rank", "trainer.cpu_ranks", _on_gpus),
    _change("trainer: {backend: megatron, megatron: {tensor_parallel: 3}}",
            "do not divide", "trainer.megatron.tensor_parallel"),
    # --- the model
    _change("model: {path: meta-llama/Meta-Llama-3-8B}", "no chat template", "model.path", _large),
    _change("model: {path: Qwen/Qwen3-8B-FP8}", "quantized with FP8", "model.path"),
    _change("model: {path: Qwen/Qwen3-8}", "nothing is known here", "model.path"),
    _change("model: {path: ./no-such-folder}", "neither a folder on this machine", "model.path"),
    _change('model: {path: "builtin:large"}', "ships with the package", "model.path"),
    _change("model: {path: Qwen/Qwen3-Next-80B-A3B-Instruct}\ntrainer: {backend: megatron}",
            "Gated-DeltaNet layers", "model.path"),
    _change("model: {path: Qwen/Qwen3.5-4B}\ntrainer: {backend: megatron}",
            "24 Gated-DeltaNet layers", "trainer.backend"),
    _change("model: {path: meta-llama/Meta-Llama-3-8B-Instruct, thinking: true}",
            "knows no thinking", "model.thinking", _large),
    _change("model: {thinking: true}\nworkflow: {chat: false}", "`model.thinking` would be ignored",
            "model.thinking"),
    # --- what goes in
    _change("data: {train: deepscalar}", "neither a known dataset nor a file", "data.train"),
    _change("data: {train: aime24}", "aime24", "data.train"),
    _change("data: {root: /no/such/folder}", "no folder here", "data.root"),
    _change("data: {columns: {problem: question}}", "would be ignored", "data.columns.problem"),
    _change("evaluation: {datasets: [math500, math500]}", "names `math500` twice",
            "evaluation.datasets.1"),
    _change("data: {train: gsm8k}\nevaluation: {datasets: [gsm8k]}",
            "trained on and evaluated with", "data.train"),
    _change("workflow: {name: rlvrr}", "did you mean `rlvr`", "workflow.name"),
    _change("workflow: {answer: boxed, instruction: solve it, examples: x}",
            "no prompt asks for one", "workflow.answer"),
    _change('workflow: {stop: ["", "a"]}', "holds an empty text", "workflow.stop.0"),
    _change("workflow: {chat: false, examples: \"\"}", "asked in plain text",
            "workflow.chat"),
    _change("data: {train: sums}\nworkflow: {chat: true}", "makes messages of them", "data.train"),
    # --- the loss and the optimizer
    _change("algorithm: {name: grpo}", "would be ignored", "algorithm.name"),
    _change("algorithm: {clip_high: 0.2}", "never clips", "algorithm.clip_high"),
    _change("algorithm: {m2_threshold: null}", "has no rule", "algorithm.m2_threshold"),
    _change("algorithm: {m2_threshold: 100}", "masks nothing", "algorithm.m2_threshold"),
    _change("algorithm: {reward_norm: none, advantage_norm: none}", "without any baseline",
            "algorithm.reward_norm"),
    _change("algorithm: {kl_coef: 50}", "outweighs rewards", "algorithm.kl_coef"),
    _change("trainer: {optimizer: {lr: 0}}", "above 0", "trainer.optimizer.lr"),
    _change("trainer: {optimizer: {lr: 5}}", "at most 0.1", "trainer.optimizer.lr"),
    _change("trainer: {optimizer: {lr: 0.01}}", "destroys a language model",
            "trainer.optimizer.lr"),
    _change("trainer: {master_dtype: float32, optimizer: {lr: 1e-10}}", "rounds to nothing",
            "trainer.optimizer.lr"),
    _change("trainer: {master_dtype: bfloat16, optimizer: {lr: 1e-6}}", "256 * lr = 0.00026",
            "trainer.master_dtype"),
    _change("model: {dtype: float32}\ntrainer: {master_dtype: bfloat16}",
            "cannot have bfloat16 masters", "model.dtype"),
    _change("model: {dtype: float16}", "one of", "model.dtype"),
    _change("trainer: {optimizer: {betas: [0.999, 0.9]}}", "steps are unbounded",
            "trainer.optimizer.betas"),
    _change("trainer: {optimizer: {betas: [0.9, 1.0]}}", "below 1", "trainer.optimizer.betas.1"),
    _change("trainer: {optimizer: {warmup_updates: 99999}}", "never ends",
            "trainer.optimizer.warmup_updates"),
    _change("rollout: {temperature: 0}", "above 0", "rollout.temperature"),
    _change("rollout: {temperature: 0.01}", "nearly alike", "rollout.temperature"),
    _change("algorithm: {kl_coef: 1e-12}", "keeps a second copy", "algorithm.kl_coef"),
    _change("trainer: {optimizer: {clip_norm: 9999}}", "none ever is",
            "trainer.optimizer.clip_norm"),
    # --- weights
    _change("weights: {full_sync_interval: null}", "no interval for full sends",
            "weights.full_sync_interval", _delta),
    _change("weights: {full_sync_interval: 1}", "saves nothing", "weights.full_sync_interval",
            _delta),
    _change("weights: {full_sync_interval: 99999}", "the first full send",
            "weights.full_sync_interval", _delta),
    _change("weights: {keep_deltas: 0}", "at least 1", "weights.keep_deltas"),
    _change("weights: {snapshot: host}", "would be ignored", "weights.snapshot", _full),
    _change("weights: {keep_deltas: 4}", "would be ignored", "weights.keep_deltas", _full),
    _change("weights: {mode: delta}", "no interval for full sends", "weights.mode", _full),
    _change("weights: {mode: delta, full_sync_interval: 10, snapshot: host}",
            "the trainer has no GPU", "weights.snapshot", _on_cpu),
    # --- time
    _change("trainer: {steps: 5}\ncheckpoint: {every_steps: 9}", "only the last step counts",
            "checkpoint.every_steps"),
    _change("evaluation: {every_steps: 9999}", "only the last step counts",
            "evaluation.every_steps"),
    _change("evaluation: {datasets: []}", "nothing is ever evaluated", "evaluation.datasets"),
    _change("evaluation: {temperature: 0, samples: 4}", "equal answers", "evaluation.samples"),
    _change("evaluation: {timeout_s: 0.5}", "counts most answers as wrong",
            "evaluation.timeout_s"),
    _change("checkpoint: {keep: 9999}", "none is ever deleted", "checkpoint.keep"),
    _change("limits: {heartbeat_s: 0.5}", "every one counts as silent", "limits.heartbeat_s"),
    _change("dataflow: {lease_timeout_s: 1}", "every one counts as silent",
            "dataflow.lease_timeout_s"),
    _change("dataflow: {lease_timeout_s: 9999}", "may end before the prompts",
            "dataflow.lease_timeout_s"),
    _change("limits: {no_progress_s: 60}", "one slow answer may end the run",
            "limits.no_progress_s"),
    _change("limits: {ready_s: 1}", "too short for a role to load", "limits.ready_s"),
    _change("limits: {stop_s: 0.01}", "killed before", "limits.stop_s"),
    _change("limits: {ready_s: 99999999}", "at most 604800", "limits.ready_s"),
    _change("evaluation: {temperature: 2.0}", "mostly noise", "evaluation.temperature"),
    _change("recovery: {window_s: 0.5}", "none ever counts", "recovery.window_s"),
    _change("recovery: {trainer_restarts: 9999}", "again and again", "recovery.trainer_restarts"),
    _change("limits: {mismatch_nats: 9}", "never warned about", "limits.mismatch_nats"),
    # --- adapters
    _change("rollout: {transformers: {max_batch: 64}}", "the backend is `sglang`",
            "rollout.transformers", _on_gpus),
    _change("rollout: {sglang: {max_running_requests: 64}}", "the backend is `transformers`",
            "rollout.sglang", _on_cpu),
    _change("trainer: {megatron: {tensor_parallel: 1}}", "the backend is `fsdp`",
            "trainer.megatron"),
    _change("trainer: {fsdp: {threads: 2}}", "the trainer has GPUs", "trainer.fsdp.threads",
            _on_gpus),
    _change("trainer: {fsdp: {offload_optimizer: true}}", "would be ignored",
            "trainer.fsdp.offload_optimizer", _on_cpu),
    _change("trainer: {fsdp: {attention: varlen}}", "need a GPU", "trainer.fsdp.attention",
            _on_cpu),
    _change("rollout: {transformers: {device: cuda}}", "should run on a GPU",
            "rollout.transformers.device", _on_cpu),
    _change("rollout: {sglang: {chunked_prefill_size: 0}}", "never ends",
            "rollout.sglang.chunked_prefill_size", _on_gpus),
    _change("rollout: {sglang: {chunked_prefill_size: 3}}", "in tiny pieces",
            "rollout.sglang.chunked_prefill_size", _on_gpus),
    _change("rollout: {sglang: {start_timeout_s: 1}}", "too short for a server",
            "rollout.sglang.start_timeout_s", _on_gpus),
    _change("rollout: {sglang: {mem_fraction_static: 0.99}}", "leave nothing",
            "rollout.sglang.mem_fraction_static", _on_gpus),
    _change("rollout: {sglang: {waiting_target: 9999}}", "only grow stale",
            "rollout.sglang.waiting_target", _on_gpus),
    _change("rollout: {sglang: {start_timeout_s: 900}}", "the role that starts it has 600 s",
            "rollout.sglang.start_timeout_s", _on_gpus),
    _change("rollout: {sglang: {server_args: {port: 1}}}", "the adapter sets it",
            "rollout.sglang.server_args", _on_gpus),
)  # fmt: skip


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_every_impossible_combination_is_told_at_its_value(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(path), recipe_type=recipe_type()).recipe
    chosen = [change for change in _IMPOSSIBLE if change.where(recipe)]
    assert len(chosen) >= 60
    file = tmp_path / "mutant.yaml"
    for change in chosen:
        file.write_text(f"extends: {path.stem}\n{change.text}\n", encoding="utf-8")
        findings = inspect_recipe(str(file))
        told = [
            finding
            for finding in (*findings.errors, *findings.warnings)
            if change.words in f"{finding.what} {finding.hint}"
        ]
        assert told, (change.text, [*map(str, findings.errors)], [*map(str, findings.warnings)])
        # It stands in the mutant, and shows where the value stands that was broken.
        place = _place_of(file, change.path)
        assert any(
            "mutant.yaml:" in finding.where and place in f"{finding.where} {finding.what}"
            for finding in told
        ), (change.text, place, [str(finding) for finding in told])


def _place_of(file: Path, path: str) -> str:
    """Return where a value stands in the mutant; the change must write it."""
    tree, _ = read_yaml(file, shown_as=str(file))
    places = {".".join(keys): place for keys, place in tree.walk()}
    return str(places[path])
