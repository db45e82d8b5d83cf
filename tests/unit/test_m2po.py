"""M2PO's selection and loss: the published vectors, the edges, the invariances."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.errors import LossInputError
from astraflow.learning.m2po import kept_ratio_loss, second_moment_cut

VECTORS = json.loads((Path(__file__).parent / "data" / "m2po_vectors.json").read_text())

tokens = st.lists(
    st.tuples(
        st.floats(-2, 2, width=32), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), st.booleans()
    ),
    min_size=1,
    max_size=40,
)


def _tensors(rows: list[tuple[float, float, bool]]) -> tuple[torch.Tensor, ...]:
    d, a, mask = zip(*rows, strict=True)
    return torch.tensor(d), torch.tensor(a), torch.tensor(mask)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_published_vector_is_reproduced(vector: dict[str, Any]) -> None:
    d = torch.tensor(vector["d"], dtype=torch.float64, requires_grad=True)
    a = torch.tensor(vector["A"], dtype=torch.float64)
    mask = torch.tensor(vector["loss_mask"], dtype=torch.bool)
    chosen = second_moment_cut(d.detach(), a, mask, bound=vector["tau"])
    assert chosen.keep.int().tolist() == vector["keep"]
    assert chosen.before == pytest.approx(vector["m2_before"], rel=1e-12)
    assert chosen.after == pytest.approx(vector["m2_after"], rel=1e-12)
    cutoff = math.inf if vector["cutoff"] is None else vector["cutoff"]
    assert chosen.cut == pytest.approx(cutoff, rel=1e-12)
    assert chosen.counted_frac == pytest.approx(sum(vector["V"]) / int(mask.sum()))
    loss = kept_ratio_loss(d, a, chosen.keep).sum() / mask.sum()
    loss.backward()
    assert loss.item() == pytest.approx(vector["loss"], rel=1e-12)
    assert d.grad is not None
    assert d.grad.tolist() == pytest.approx(vector["grad"], rel=1e-12)


def test_batch_exactly_on_the_bound_is_kept_whole() -> None:
    d = torch.full((6,), 0.1)  # 0.1 * 0.1 rounds above 0.01
    chosen = second_moment_cut(d, torch.ones(6), torch.ones(6, dtype=torch.bool), bound=0.01)
    assert chosen.keep.all()
    assert chosen.cut == math.inf


def test_batch_in_which_every_token_is_beyond_the_bound_is_masked_whole() -> None:
    d = torch.full((4,), 0.5)
    chosen = second_moment_cut(d, torch.ones(4), torch.ones(4, dtype=torch.bool), bound=0.04)
    assert not chosen.keep.any()
    assert (chosen.after, chosen.cut, chosen.masked_frac) == (0.0, -1.0, 1.0)
    assert float(kept_ratio_loss(d, torch.ones(4), chosen.keep).sum()) == 0.0


def test_counted_tokens_within_the_bound_on_average_are_kept() -> None:
    d = torch.tensor([0.3, -0.3, 0.01, 0.02, -0.01])
    a = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])  # every token counts
    chosen = second_moment_cut(d, a, torch.ones(5, dtype=torch.bool), bound=0.04)
    # (0.09 + 0.09 + 0.0001 + 0.0004 + 0.0001) / 5 = 0.03612
    assert chosen.before == pytest.approx(0.03612, rel=1e-5)
    assert chosen.keep.all()


def test_no_token_at_all_gives_no_loss() -> None:
    nothing = torch.zeros(3, dtype=torch.bool)
    chosen = second_moment_cut(torch.ones(3), torch.ones(3), nothing, bound=0.04)
    assert (chosen.before, chosen.after, chosen.masked_frac) == (0.0, 0.0, 0.0)
    assert float(kept_ratio_loss(torch.ones(3), torch.ones(3), chosen.keep).sum()) == 0.0


def test_tokens_that_clipping_could_not_act_on_are_never_masked() -> None:
    d = torch.tensor([0.0, 0.1, -0.1, 1.0, 1.0])
    a = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0])
    chosen = second_moment_cut(d, a, torch.ones(5, dtype=torch.bool), bound=0.02)
    # a ratio above 1 with a negative advantage is outside the counted quadrants
    assert chosen.keep.tolist() == [True, True, True, False, True]


def test_divisor_is_all_answer_tokens_as_the_paper_has_it() -> None:
    d = torch.tensor([0.0, 0.1, -0.1, 1.0])
    chosen = second_moment_cut(d, torch.ones(4), torch.ones(4, dtype=torch.bool), bound=0.02)
    loss = kept_ratio_loss(d, torch.ones(4), chosen.keep).sum() / 4
    # -(1 + 1.105171 + 0.904837) / 4, not / 3
    assert float(loss) == pytest.approx(-0.752502, abs=1e-6)


def test_infinite_log_ratio_is_masked_and_moves_no_other_token() -> None:
    d = torch.tensor([0.1, float("-inf"), float("inf"), -0.1], requires_grad=True)
    a = torch.tensor([1.0, -1.0, 1.0, 1.0])
    chosen = second_moment_cut(d.detach(), a, torch.ones(4, dtype=torch.bool), bound=0.04)
    assert chosen.keep.tolist() == [True, False, False, True]
    kept_ratio_loss(d, a, chosen.keep).sum().backward()
    assert d.grad is not None
    assert torch.isfinite(d.grad).all()
    assert d.grad[1:3].tolist() == [0.0, 0.0]


def test_nan_inside_the_answer_is_an_error_and_outside_is_not() -> None:
    d = torch.tensor([float("nan"), 0.1])
    with pytest.raises(LossInputError, match="token 0"):
        second_moment_cut(d, torch.ones(2), torch.tensor([True, True]), bound=0.04)
    kept = second_moment_cut(d, torch.ones(2), torch.tensor([False, True]), bound=0.04).keep
    assert kept.tolist() == [False, True]


@given(tokens, st.floats(1e-3, 1.0))
def test_what_is_kept_lies_within_the_bound(rows: Any, bound: float) -> None:
    d, a, mask = _tensors(rows)
    chosen = second_moment_cut(d, a, mask, bound=bound)
    assert chosen.after <= bound * (1 + 2e-6)
    assert not (chosen.keep & ~mask).any()


@given(tokens, st.floats(1e-3, 1.0), st.randoms())
def test_order_of_tokens_does_not_matter(rows: Any, bound: float, random: Any) -> None:
    d, a, mask = _tensors(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    straight = second_moment_cut(d, a, mask, bound=bound)
    shuffled = second_moment_cut(d[order], a[order], mask[order], bound=bound)
    assert torch.equal(straight.keep[order], shuffled.keep)


@given(tokens, st.floats(1e-3, 1.0))
def test_batch_given_twice_decides_like_the_batch(rows: Any, bound: float) -> None:
    d, a, mask = _tensors(rows)
    once = second_moment_cut(d, a, mask, bound=bound)
    twice = second_moment_cut(d.repeat(2), a.repeat(2), mask.repeat(2), bound=bound)
    assert torch.equal(once.keep.repeat(2), twice.keep)


@given(tokens, st.floats(1e-3, 0.5), st.floats(1.01, 4.0))
def test_higher_bound_masks_no_more(rows: Any, bound: float, factor: float) -> None:
    d, a, mask = _tensors(rows)
    tight = second_moment_cut(d, a, mask, bound=bound).keep
    loose = second_moment_cut(d, a, mask, bound=bound * factor).keep
    assert not (tight & ~loose).any()


@given(tokens)
@settings(max_examples=50)
def test_mirrored_signs_count_the_same_tokens(rows: Any) -> None:
    d, a, mask = _tensors(rows)
    assert torch.equal(
        second_moment_cut(d, a, mask, bound=0.04).keep,
        second_moment_cut(-d, -a, mask, bound=0.04).keep,
    )
