"""Interim."""


def load_tokenizer(path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def stop_ids(tok, path):
    return (tok.eos_token_id,)


class PromptRenderer:
    def __init__(self, tok, *, model=""):
        self.tok = tok

    def render(self, problem, *, instruction, thinking):
        text = problem + ("\n" + instruction if instruction else "")
        ids = self.tok.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            enable_thinking=thinking,
        )
        return tuple(ids["input_ids"] if hasattr(ids, "keys") else ids)

    def decode(self, ids):
        return self.tok.decode(ids, skip_special_tokens=True)
