"""Advantages: inside the group, then over the batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.errors import LossInputError
from astraflow.learning import batch_normalize, group_normalize


def test_one_right_answer_of_eight_by_sample_deviation() -> None:
    rewards = torch.tensor([1.0] + [0.0] * 7)
    advantages = group_normalize(rewards, torch.zeros(8, dtype=torch.int64), mode="group")
    # mean 1/8, sample variance 1/8: (7/8) / sqrt(1/8) = 2.47487 and -(1/8) / sqrt(1/8)
    torch.testing.assert_close(
        advantages, torch.tensor([2.47487] + [-0.35355] * 7), atol=1e-4, rtol=0
    )


def test_groups_never_mix_even_when_their_rows_do() -> None:
    first, second = [1.0, 0, 0, 0, 0, 0, 0, 0], [1.0, 1, 1, 1, 0, 0, 0, 0]
    rewards = torch.tensor([x for pair in zip(first, second, strict=True) for x in pair])
    advantages = group_normalize(rewards, torch.tensor([7, 3] * 8), mode="group")
    # 4 of 8: mean 1/2, sample variance 8 * 1/4 / 7 = 2/7: 0.5 / sqrt(2/7) = 0.93541
    assert advantages[0] == pytest.approx(2.47487, abs=1e-4)
    assert advantages[1] == pytest.approx(0.93541, abs=1e-4)
    assert advantages[15] == pytest.approx(-0.93541, abs=1e-4)


@pytest.mark.parametrize(("reward", "count"), [(0.7, 7), (0.9, 3), (0.3, 6), (0.1, 7), (1 / 3, 10)])
@pytest.mark.parametrize("mode", ["group", "mean_only"])
def test_group_whose_answers_all_score_alike_gives_no_gradient(
    reward: float, count: int, mode: str
) -> None:
    rewards = torch.full((count,), reward)
    advantages = group_normalize(rewards, torch.zeros(count, dtype=torch.int64), mode=mode)
    assert torch.equal(advantages, torch.zeros(count))


def test_mean_only_keeps_the_scale_of_rewards() -> None:
    advantages = group_normalize(
        torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64), mode="mean_only"
    )
    assert advantages.tolist() == [0.75, -0.25, -0.25, -0.25]


def test_reward_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(LossInputError, match="nan"):
        group_normalize(torch.tensor([1.0, float("nan")]), torch.tensor([0, 0]), mode="none")


def test_batch_norm_counts_answer_tokens_only_and_leaves_the_prompt_at_zero() -> None:
    advantages = torch.tensor([9.0, 1.0, 2.0, 3.0])
    mask = torch.tensor([False, True, True, True])
    # mean 2, sample deviation 1
    expected = torch.tensor([0.0, -1.0, 0.0, 1.0])
    torch.testing.assert_close(batch_normalize(advantages, mask), expected, atol=2e-5, rtol=0)


def test_batch_norm_of_equal_advantages_or_of_nothing_is_zero() -> None:
    mask = torch.ones(5, dtype=torch.bool)
    assert torch.equal(batch_normalize(torch.full((5,), 0.1), mask), torch.zeros(5))
    assert torch.equal(batch_normalize(torch.ones(5), ~mask), torch.zeros(5))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16), st.randoms())
def test_order_of_answers_does_not_matter(rewards: list[float], random: object) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    ids = torch.zeros(len(rewards), dtype=torch.int64)
    values = torch.tensor(rewards)
    straight = group_normalize(values, ids, mode="group")
    shuffled = group_normalize(values[order], ids, mode="group")
    torch.testing.assert_close(straight[order], shuffled)
