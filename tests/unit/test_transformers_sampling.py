"""Drawing tokens: the inverse of the cumulative distribution, by hand-worked numbers."""

import pytest
import torch

from astraflow_transformers.sampling import draw

# probabilities 0.2, 0.5, 0, 0.3
LOGITS = torch.tensor([0.2, 0.5, 0.0, 0.3]).log()


def _draw(uniform: list[float], temperature: float = 1.0, top_p: float = 1.0) -> torch.Tensor:
    rows = len(uniform)
    tokens, logprobs = draw(
        LOGITS.expand(rows, -1),
        temperature=torch.full((rows,), temperature),
        uniform=torch.tensor(uniform, dtype=torch.float64),
        top_p=torch.full((rows,), top_p, dtype=torch.float64) if top_p < 1 else None,
    )
    assert torch.isfinite(logprobs).all()
    return tokens


def test_uniform_number_picks_the_token_whose_interval_it_falls_in() -> None:
    tokens = _draw([0.0, 0.19, 0.21, 0.69, 0.71, 0.999])
    assert tokens.tolist() == [0, 0, 1, 1, 3, 3]


def test_token_of_probability_zero_is_never_drawn_even_at_the_ends() -> None:
    assert 2 not in _draw([0.0, 0.7, 1 - 2**-53]).tolist()


def test_temperature_zero_takes_the_likeliest_token() -> None:
    assert _draw([0.0, 0.99], temperature=0.0).tolist() == [1, 1]


def test_logprob_is_of_the_whole_distribution_at_the_temperature() -> None:
    _, logprobs = draw(
        LOGITS[None],
        temperature=torch.tensor([0.5]),
        uniform=torch.tensor([0.3], dtype=torch.float64),
        top_p=torch.tensor([0.6], dtype=torch.float64),
    )
    # squares: 0.04, 0.25, 0, 0.09, of which the drawn one is 0.25 / 0.38
    assert logprobs.exp().item() == pytest.approx(0.25 / 0.38, rel=1e-5)


def test_nucleus_leaves_only_the_likeliest_tokens_of_that_mass() -> None:
    # 0.5 alone is short of 0.6, so 0.3 joins it: intervals 5/8 and 3/8
    tokens = _draw([0.0, 0.62, 0.63, 0.999], top_p=0.6)
    assert tokens.tolist() == [1, 1, 3, 3]


def test_rows_of_different_temperatures_share_a_step() -> None:
    tokens, _ = draw(
        LOGITS.expand(2, -1),
        temperature=torch.tensor([0.0, 1.0]),
        uniform=torch.tensor([0.9, 0.9], dtype=torch.float64),
        top_p=None,
    )
    assert tokens.tolist() == [1, 3]
