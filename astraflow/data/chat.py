"""PromptRenderer: a problem to token ids, through the tokenizer's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from astraflow.errors import RecipeError

__all__ = ["ChatTokenizer", "PromptRenderer", "load_tokenizer", "stop_ids"]


class ChatTokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    chat_template: Any
    eos_token_id: int | None
    bos_token_id: int | None

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render messages."""
        ...

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """Turn ids to text."""
        ...

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        """Turn text to ids."""
        ...


class PromptRenderer:
    """
    Renders problems for one model.

    Args:
        tokenizer: The model's tokenizer.
        model: The model's path, for messages.
        chat: Use the tokenizer's chat template; False goes on with plain text.
        examples: Put before each problem.

    Raises:
        RecipeError: the tokenizer has no chat template, as base models have none.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, *, model: str, chat: bool = True, examples: str = ""
    ) -> None:
        if chat and not tokenizer.chat_template:
            raise RecipeError(
                f"the tokenizer of `{model}` has no chat template, so prompts cannot be rendered",
                hint="train the -Instruct sibling, put a `chat_template` into the folder's "
                "tokenizer_config.json, or `workflow.chat: false` with `workflow.examples`",
            )
        self._tokenizer = tokenizer
        self._chat = chat
        self._examples = examples

    def render(self, problem: str, *, instruction: str, thinking: bool) -> tuple[int, ...]:
        """
        Render one user message, or plain text, up to where the answer begins.

        Ids, not text, go to the engine, so nothing can add a second start token; should the
        template itself write one more than the tokenizer adds, it is taken out.
        """
        content = self._examples + (f"{problem}\n{instruction}" if instruction else problem)
        if not self._chat:
            return tuple(self._tokenizer.encode(content))
        rendered = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            enable_thinking=thinking,
        )
        ids = tuple(int(token) for token in _flat(rendered))
        start = self._tokenizer.bos_token_id
        while start is not None and ids[:2] == (start, start):
            ids = ids[1:]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens and without tidying blanks."""
        return str(
            self._tokenizer.decode(
                list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


def load_tokenizer(path: str) -> ChatTokenizer:
    """
    Load a model's tokenizer.

    Raises:
        RecipeError: there is none at that path.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: ChatTokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"no tokenizer can be loaded from `{path}`: {str(error).splitlines()[0]}",
            hint="give a folder with tokenizer.json, or a hub id with network or a filled cache",
        ) from error
    return tokenizer


def stop_ids(tokenizer: ChatTokenizer, path: str, more: Sequence[str] = ()) -> tuple[int, ...]:
    """
    Return every token that ends an answer, ascending.

    Args:
        tokenizer: The model's.
        path: The model's folder or hub id.
        more: Texts that end an answer too, each a single token.

    Raises:
        RecipeError: a text is not a single token.

    The union of what tokenizer, generation_config.json and config.json name: Llama-3's config
    ends with one token and its chat answers with another, which only the generation config has.
    """
    found = {tokenizer.eos_token_id}
    for ending in more:
        ids = tokenizer.encode(ending, add_special_tokens=False)
        if len(ids) != 1:
            raise RecipeError(
                f"`workflow.stop` has {ending!r}, which is {len(ids)} tokens of `{path}`",
                hint="an answer can end with a single token only",
            )
        found.add(ids[0])
    folder = _folder(path)
    for name in ("generation_config.json", "config.json"):
        file = folder / name if folder else None
        if file is None or not file.is_file():
            continue
        content: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        text = content.get("text_config") or {}
        for value in (content.get("eos_token_id"), text.get("eos_token_id")):
            found |= set(value) if isinstance(value, list) else {value}
    return tuple(sorted(token for token in found if token is not None))


def _folder(path: str) -> Path | None:
    """Return where a checkpoint's small files lie: its folder, or the hub's cache."""
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    from transformers.utils.hub import cached_file

    found = cached_file(path, "config.json", _raise_exceptions_for_missing_entries=False)
    return Path(found).parent if found else None


def _flat(rendered: Any) -> Sequence[int]:
    ids = rendered["input_ids"] if isinstance(rendered, Mapping) else rendered
    return ids[0] if len(ids) and isinstance(ids[0], list) else ids
