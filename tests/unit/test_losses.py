"""GRPO, GSPO, Dr. GRPO and the KL term, by hand-worked numbers."""

import math

import pytest
import torch

from astraflow.learning.dr_grpo import constant_divisor
from astraflow.learning.grpo import clipped_ratio_loss
from astraflow.learning.gspo import sequence_means
from astraflow.learning.kl import k3

ALL = torch.ones(4, dtype=torch.bool)


def test_ratio_is_clipped_on_the_side_that_the_advantage_pushes_to() -> None:
    log_ratio = torch.tensor([1.5, 0.5, 1.5, 0.5]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    losses, clipped = clipped_ratio_loss(log_ratio, advantages, ALL, clip_low=0.2, clip_high=0.28)
    # above 1.28 with A > 0 and below 0.8 with A < 0 the clipped value counts
    torch.testing.assert_close(losses.detach(), torch.tensor([-1.28, -0.5, 1.5, 0.8]))
    assert clipped.tolist() == [True, False, False, True]
    losses.sum().backward()
    assert log_ratio.grad is not None
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, -0.5, 1.5, 0.0]))


@pytest.mark.parametrize("gap", [89.0, -89.0, float("inf"), float("-inf")])
@pytest.mark.parametrize("without", ["advantage", "mask"])
def test_token_without_advantage_or_mask_adds_exactly_nothing(gap: float, without: str) -> None:
    log_ratio = torch.tensor([0.0, gap, 0.0, 0.0], requires_grad=True)
    advantages = torch.tensor([1.0, 0.0 if without == "advantage" else 1.0, 1.0, 1.0])
    mask = torch.tensor([True, without == "advantage", True, True])
    losses, _ = clipped_ratio_loss(log_ratio, advantages, mask, clip_low=0.2, clip_high=0.28)
    losses.sum().backward()
    assert losses.tolist() == [-1.0, 0.0, -1.0, -1.0]
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [-1.0, 0.0, -1.0, -1.0]


def test_sequence_ratio_is_the_geometric_mean_of_its_answer_tokens() -> None:
    log_ratio = torch.tensor([9.0, 0.1, 0.3, 9.0, -0.2])
    mask = torch.tensor([False, True, True, False, True])
    means, present = sequence_means(log_ratio, mask, torch.tensor([0, 3, 5, 5]))
    torch.testing.assert_close(means, torch.tensor([0.2, -0.2, 0.0]))
    assert present.tolist() == [True, True, False]


def test_dr_grpo_divides_by_the_budget_and_not_by_what_was_written() -> None:
    assert constant_divisor(4, 100) == 400.0


def test_k3_matches_small_values_and_is_bounded_at_large_ones() -> None:
    # x = reference - policy
    policy = torch.tensor([-0.1, 0.1, -30.0, 30.0, 0.0], requires_grad=True)
    mask = torch.tensor([True, True, True, True, False])
    values = k3(policy, torch.zeros(5), mask)
    assert values[0].item() == pytest.approx(0.005171, abs=1e-6)
    assert values[1].item() == pytest.approx(0.004837, abs=1e-6)
    assert values[2].item() == pytest.approx(math.exp(10) - 11, rel=1e-5)
    assert values[3].item() == pytest.approx(math.exp(-10) + 9, rel=1e-5)
    assert values[4].item() == 0.0
    values.sum().backward()
    assert policy.grad is not None
    assert torch.isfinite(policy.grad).all()
