r"""
The tiny model: about 0.8 M parameters of Qwen3, warm-started on two-digit additions.

It ships as a checkpoint folder in Hugging Face format, with a real tokenizer and chat
template, so that the whole loop runs on a CPU without a network. It is made again by
`python -m astraflow.testing.tiny OUT_DIR`. It is good at nothing else: it answers
`\boxed{sum}` and is right about two times in three on additions that it was never shown, so
that reinforcement learning has work left.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from astraflow.data.additions import addition_pairs
from astraflow.recipe.schema import WorkflowSection

__all__ = [
    "build_tokenizer",
    "greedy_accuracy",
    "tiny_model_path",
    "write_tiny_model",
]

Pair: TypeAlias = tuple[int, int]

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|im_start|>assistant\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking -%}{{- '<think>\n' -}}{%- endif -%}"
    "{%- endif -%}"
)

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
_BATCH = 128
_MAX_UPDATES = 3000
_UPDATES_BETWEEN_LOOKS = 10
_LR = 1e-3
# The model learns to carry within twenty updates, from 0.4 to 0.85: a slower end hits the goal.
_SLOW_FROM = 0.35
_GOAL = 0.68
_VALIDATION_PAIRS = 500


def tiny_model_path() -> Path:
    """Return the folder of the checkpoint that ships with the package."""
    return Path(__file__).with_name("tiny_model")


def build_tokenizer() -> Any:
    """
    Make the byte-level BPE: single digits, and whole phrases of the prompt as one token each.

    Its merges are written down rather than trained: a trainer breaks ties by chance.

    Returns:
        A ``PreTrainedTokenizerFast`` (transformers has no types for it).
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Split at digits alone: merges may cross words and lines, and the instruction becomes one
    # token. Prompts stay short, and with them every run of the quickstart.
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[0-9]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    problem = _problem((12, 34), WorkflowSection().instruction)
    pieces = [
        piece
        for text in (problem, "user\n", "assistant\n", "system\n", "\\boxed{")
        for piece, _ in split.pre_tokenize_str(text)
    ]
    # Each merge makes the next one possible, so a phrase is whole before another one begins.
    merges = dict.fromkeys(
        (piece[:end], piece[end]) for piece in pieces for end in range(1, len(piece))
    )
    tokens = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [left + right for left, right in merges]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def greedy_accuracy(model: Any, tokenizer: Any, pairs: Sequence[Pair]) -> float:
    """
    Return the share of ``pairs`` whose greedy answer is the boxed sum, 0 to 1.

    One pass over prompt and gold answer tells: greedy decoding gives the gold answer exactly if
    after each of its beginnings the likeliest token is its next one.
    """
    import torch

    right = 0
    with torch.inference_mode():
        for at in range(0, len(pairs), _BATCH):
            ids, answer_ids = _rows(tokenizer, pairs[at : at + _BATCH])
            chosen = _answer_logits(model, ids, answer_ids).argmax(-1)
            padding = answer_ids == tokenizer.pad_token_id
            right += int(((chosen == answer_ids) | padding).all(1).sum())
    return right / len(pairs)


def write_tiny_model(folder: Path, *, seed: int = 1) -> float:
    """
    Make the checkpoint: tokenizer, random model, warm start, files.

    Args:
        folder: Where the checkpoint goes; made if absent.
        seed: Seed of the weights and of the order of the additions.

    Returns:
        Greedy accuracy on the held-out additions, 0 to 1.
    """
    import torch

    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = _build_model(tokenizer)
    train, held_out = _split()
    random.Random(seed).shuffle(train)
    _warm_start(model, tokenizer, train, seed=seed)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    return greedy_accuracy(model, tokenizer, held_out)


def _build_model(tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]


def _warm_start(model: Any, tokenizer: Any, pairs: Sequence[Pair], *, seed: int) -> None:
    """Train on answers until additions set aside from ``pairs`` come out right often enough."""
    import torch

    validation, train = pairs[:_VALIDATION_PAIRS], pairs[_VALIDATION_PAIRS:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, weight_decay=0.01)
    batches = _batches(train, random.Random(seed))
    for update in range(1, _MAX_UPDATES + 1):
        loss = _answer_loss(model, tokenizer, next(batches))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % _UPDATES_BETWEEN_LOOKS:
            continue
        accuracy = greedy_accuracy(model, tokenizer, validation)
        if accuracy >= _GOAL:
            return
        if accuracy >= _SLOW_FROM:
            optimizer.param_groups[0]["lr"] = _LR / 10


def _answer_loss(model: Any, tokenizer: Any, pairs: Sequence[Pair]) -> Any:
    """Mean cross-entropy of the answers' tokens."""
    import torch

    ids, answer_ids = _rows(tokenizer, pairs)
    return torch.nn.functional.cross_entropy(
        _answer_logits(model, ids, answer_ids).flatten(0, 1),
        answer_ids.flatten(),
        ignore_index=tokenizer.pad_token_id,
    )


def _rows(tokenizer: Any, pairs: Sequence[Pair]) -> tuple[Any, Any]:
    """Return ``[pairs, prompt + answer]`` and ``[pairs, answer]`` int64, pads on the right."""
    import torch

    answers = [_answer(tokenizer, pair) for pair in pairs]
    longest = max(map(len, answers))
    padding = tokenizer.pad_token_id
    answer_ids = torch.tensor([a + [padding] * (longest - len(a)) for a in answers])
    prompts = torch.tensor([_prompt(tokenizer, pair) for pair in pairs])  # all of one length
    return torch.cat([prompts, answer_ids], dim=1), answer_ids


def _answer_logits(model: Any, ids: Any, answer_ids: Any) -> Any:
    """Return ``[pairs, answer, vocabulary]``, the logits that predict each answer token."""
    return model(ids, use_cache=False, logits_to_keep=answer_ids.shape[1] + 1).logits[:, :-1]


def _batches(pairs: Sequence[Pair], order: random.Random) -> Iterator[list[Pair]]:
    """Go through the pairs for ever, in a fresh order each time."""
    while True:
        shuffled = order.sample(pairs, len(pairs))
        for at in range(0, len(shuffled) - _BATCH + 1, _BATCH):
            yield shuffled[at : at + _BATCH]


def _problem(pair: Pair, instruction: str) -> str:
    return f"{pair[0]} + {pair[1]} = ?\n{instruction}"


def _prompt(tokenizer: Any, pair: Pair) -> list[int]:
    """Render a pair as the `rlvr` workflow does: ``[prompt]`` token ids."""
    messages = [{"role": "user", "content": _problem(pair, WorkflowSection().instruction)}]
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _answer(tokenizer: Any, pair: Pair) -> list[int]:
    text = f"\\boxed{{{pair[0] + pair[1]}}}<|im_end|>"
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _split() -> tuple[list[Pair], list[Pair]]:
    return addition_pairs(held_out=False), addition_pairs(held_out=True)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Make the tiny model again.")
    parser.add_argument("folder", type=Path, help="where the checkpoint goes")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # sums in one order, so that the same seed gives the same weights
    write_tiny_model(arguments.folder, seed=arguments.seed)


if __name__ == "__main__":
    _main()
