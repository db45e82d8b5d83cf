"""Objectives: micro-batches add up, divisors are right, unusable inputs are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.errors import LossInputError
from astraflow.learning import MinibatchTotals, build_objective
from astraflow.recipe.schema import AlgorithmSection
from astraflow.records import TrainBatch

NAMES = ["m2po", "grpo", "gspo", "dr_grpo"]


def _batch(
    lengths: list[int],
    advantages: list[float],
    *,
    masked: tuple[int, ...] = (),
    behavior: torch.Tensor | None = None,
) -> TrainBatch:
    """Sequences of answer tokens only, one advantage each; ``masked`` ones are no answer."""
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    counts = torch.tensor(lengths)
    answer = torch.ones(len(lengths), dtype=torch.bool)
    answer[list(masked)] = False
    total = int(starts[-1])
    return TrainBatch(
        token_ids=torch.zeros(total, dtype=torch.int64),
        cu_seqlens=starts,
        answer_mask=torch.repeat_interleave(answer, counts),
        behavior_logprobs=torch.zeros(total) if behavior is None else behavior,
        advantages=torch.repeat_interleave(torch.tensor(advantages), counts),
    )


def _totals(batch: TrainBatch) -> MinibatchTotals:
    return MinibatchTotals(
        answer_tokens=int(batch.answer_mask.sum()),
        sequences=batch.num_sequences,
        max_new_tokens=10,
    )


def _part(batch: TrainBatch, first: int, last: int) -> TrainBatch:
    a, b = int(batch.cu_seqlens[first]), int(batch.cu_seqlens[last])
    return replace(
        batch,
        token_ids=batch.token_ids[a:b],
        cu_seqlens=batch.cu_seqlens[first : last + 1] - a,
        answer_mask=batch.answer_mask[a:b],
        behavior_logprobs=batch.behavior_logprobs[a:b],
        advantages=batch.advantages[a:b],
        keep_mask=None if batch.keep_mask is None else batch.keep_mask[a:b],
    )


@pytest.mark.parametrize("cuts", [[0, 2], [0, 1, 2]])
@pytest.mark.parametrize("name", ["m2po", "grpo"])
def test_token_mean_is_the_same_for_any_cut(name: str, cuts: list[int]) -> None:
    batch = _batch([2, 6], [-1.0, 1.0])  # losses +1 on 2 tokens, -1 on 6
    objective = build_objective(AlgorithmSection(name=name))
    losses = [
        objective.loss(torch.zeros(part.num_tokens), part, _totals(batch))[0]
        for part in (_part(batch, a, b) for a, b in zip(cuts, cuts[1:], strict=False))
    ]
    assert sum(losses).item() == pytest.approx(-0.5)  # a mean of means would be 0


def test_long_wrong_answer_weighs_by_its_tokens() -> None:
    batch = _batch([2, 6], [1.0, -1.0])
    loss, _ = build_objective(AlgorithmSection(name="grpo")).loss(
        torch.zeros(8), batch, _totals(batch)
    )
    assert loss.item() == pytest.approx(0.5)  # -(2 - 6) / 8; a mean per answer gives 0


def test_dr_grpo_divides_by_sequences_times_budget() -> None:
    batch = _batch([2, 6], [1.0, -1.0])
    loss, _ = build_objective(AlgorithmSection(name="dr_grpo")).loss(
        torch.zeros(8), batch, _totals(batch)
    )
    assert loss.item() == pytest.approx(4 / 20)


def test_gspo_averages_over_sequences() -> None:
    batch = _batch([2, 6], [1.0, -1.0])
    loss, _ = build_objective(AlgorithmSection(name="gspo")).loss(
        torch.zeros(8), batch, _totals(batch)
    )
    assert loss.item() == pytest.approx(0.0)  # -(1 - 1) / 2


def test_answer_that_is_masked_out_leaves_the_divisor() -> None:
    batch = _batch([25, 5], [-1.0, -1.0], masked=(1,))
    loss, sums = build_objective(AlgorithmSection(name="grpo")).loss(
        torch.zeros(30), batch, _totals(batch)
    )
    assert loss.item() == pytest.approx(1.0)  # 25 / 25; 25 / 30 is the fault
    assert sums["answer_tokens"].item() == 25


def test_token_that_m2po_masks_stays_in_the_divisor() -> None:
    batch = _batch([4], [1.0])
    objective = build_objective(AlgorithmSection(name="m2po", m2_threshold=0.02))
    logprobs = torch.tensor([0.0, 0.1, -0.1, 1.0])
    keep, numbers = objective.select(logprobs, batch.advantages, batch.answer_mask)
    loss, sums = objective.loss(logprobs, replace(batch, keep_mask=keep), _totals(batch))
    assert loss.item() == pytest.approx(-0.752502, abs=1e-6)
    assert sums["masked_tokens"].item() == 1
    assert numbers["masked_frac"] == 0.25


def test_mask_of_everything_is_flagged() -> None:
    objective = build_objective(AlgorithmSection(name="m2po", m2_threshold=0.04))
    mask = torch.ones(3, dtype=torch.bool)
    keep, numbers = objective.select(torch.full((3,), 0.5), torch.ones(3), mask)
    assert not keep.any()
    assert numbers["m2_all_masked"] == 1.0


def test_microbatch_scope_decides_inside_the_loss() -> None:
    batch = _batch([4], [1.0])
    objective = build_objective(
        AlgorithmSection(name="m2po", m2_threshold=0.02, scope="microbatch")
    )
    assert not objective.needs_minibatch
    loss, _ = objective.loss(torch.tensor([0.0, 0.1, -0.1, 1.0]), batch, _totals(batch))
    assert loss.item() == pytest.approx(-0.752502, abs=1e-6)


def test_group_without_signal_moves_nothing_unless_there_is_a_kl_term() -> None:
    batch = replace(_batch([4], [0.0]), reference_logprobs=torch.full((4,), -0.5))
    for kl_coef, moves in ((0.0, False), (0.001, True)):
        logprobs = torch.zeros(4, requires_grad=True)
        objective = build_objective(AlgorithmSection(name="grpo", kl_coef=kl_coef))
        loss, _ = objective.loss(logprobs, batch, _totals(batch))
        (loss + 0 * logprobs.sum()).backward()
        assert logprobs.grad is not None
        assert bool(logprobs.grad.any()) is moves


def test_kl_term_counts_tokens_that_m2po_masked() -> None:
    batch = replace(_batch([1], [1.0]), reference_logprobs=torch.tensor([0.9]))
    masked = replace(batch, keep_mask=torch.tensor([False]))
    objective = build_objective(AlgorithmSection(name="m2po", kl_coef=0.5))
    loss, sums = objective.loss(torch.tensor([1.0]), masked, _totals(batch))
    # x = -0.1: k3 = exp(-0.1) - 1 + 0.1 = 0.004837
    assert loss.item() == pytest.approx(0.5 * 0.004837, abs=1e-6)
    assert sums["kl_sum"].item() == pytest.approx(0.004837, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_overflowing_ratio_of_a_token_without_weight_is_harmless(name: str) -> None:
    batch = _batch([1, 1, 2], [1.0, 0.0, 1.0], behavior=torch.tensor([0.0, -91, 0.0, -91]))
    batch.answer_mask[3] = False
    logprobs = torch.tensor([0.0, -2.0, float("-inf"), -2.0], requires_grad=True)
    loss, _ = build_objective(AlgorithmSection(name=name, m2_threshold=None)).loss(
        logprobs, batch, _totals(batch)
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
    assert logprobs.grad[1:].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
def test_nan_inside_an_answer_is_refused(name: str) -> None:
    batch = _batch([2], [1.0])
    with pytest.raises(LossInputError, match="token 1"):
        build_objective(AlgorithmSection(name=name)).loss(
            torch.tensor([0.0, float("nan")]), batch, _totals(batch)
        )


def test_unset_clip_bounds_take_each_algorithms_own() -> None:
    assert vars_of("grpo") == (0.2, 0.28)
    assert vars_of("dr_grpo") == (0.2, 0.2)
    assert vars_of("gspo") == (3e-4, 4e-4)


def vars_of(name: Any) -> tuple[float, float]:
    objective: Any = build_objective(AlgorithmSection(name=name))
    return objective.clip_low, objective.clip_high


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=8),
    st.sampled_from(NAMES),
    st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_gradient_does_not_depend_on_microbatches(lengths: list[int], name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    batch = _batch(
        lengths,
        torch.randn(len(lengths), generator=generator).tolist(),
        behavior=torch.randn(total, generator=generator) * 0.3,
    )
    objective = build_objective(AlgorithmSection(name=name, m2_threshold=0.02))
    logprobs = torch.zeros(total)
    if objective.needs_minibatch:
        keep, _ = objective.select(
            logprobs - batch.behavior_logprobs, batch.advantages, batch.answer_mask
        )
        batch = replace(batch, keep_mask=keep)
    whole = logprobs.clone().requires_grad_()
    objective.loss(whole, batch, _totals(batch))[0].backward()
    pieces = logprobs.clone().requires_grad_()
    cut = 1 + seed % (len(lengths) - 1)
    for first, last in ((0, cut), (cut, len(lengths))):
        a, b = int(batch.cu_seqlens[first]), int(batch.cu_seqlens[last])
        objective.loss(pieces[a:b], _part(batch, first, last), _totals(batch))[0].backward()
    torch.testing.assert_close(whole.grad, pieces.grad)
