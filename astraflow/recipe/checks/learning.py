"""Rules on the loss and on the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.recipe.checks.case import Case, ignored
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

# Published runs use 1e-6 to 5e-6; the quickstart's tiny model collapses at 3e-4.
_HIGHEST_LR = 3e-4
# A sequence's ratio is a mean over its tokens, so it moves by thousandths where one token's
# moves by tenths (arXiv:2507.18071, section 5).
_SEQUENCE_CLIP, _TOKEN_CLIP = 0.05, 0.01


def _ignored_settings(case: Case) -> Iterator[Problem]:
    algorithm = case.recipe.algorithm
    if algorithm.name == "m2po":
        for key in ("clip_low", "clip_high"):
            if getattr(algorithm, key) is not None:
                yield ignored(f"algorithm.{key}", "algorithm.name", "M2PO masks and never clips")
        return
    for key in ("m2_threshold", "scope"):
        if case.written(f"algorithm.{key}"):
            why = f"`{algorithm.name}` has no such rule"
            yield ignored(f"algorithm.{key}", "algorithm.name", why)


def _threshold(case: Case) -> Iterator[Problem]:
    algorithm = case.recipe.algorithm
    if algorithm.name != "m2po":
        return
    threshold = algorithm.m2_threshold
    if threshold is None:
        yield Problem(
            what="M2PO without a threshold has no rule",
            paths=("algorithm.m2_threshold", "algorithm.name"),
            hint="set `algorithm.m2_threshold` to 0.01, or `algorithm.name` to `grpo`",
        )
    elif not 1e-4 <= threshold <= 0.5:
        does = "masks nothing" if threshold > 0.5 else "masks nearly everything"
        yield Problem(
            what=f"M2PO with a threshold of {threshold:g} nats squared {does}: log-ratios are "
            "about 0.1",
            paths=("algorithm.m2_threshold",),
            hint="set `algorithm.m2_threshold` to 0.01",
            severity="warning",
        )


def _clipping(case: Case) -> Iterator[Problem]:
    algorithm = case.recipe.algorithm
    for key in ("clip_low", "clip_high"):
        width = getattr(algorithm, key)
        if width is None or algorithm.name == "m2po":
            continue
        by_sequence = algorithm.name == "gspo"
        if by_sequence and width > _SEQUENCE_CLIP:
            does, usual = "never clips a sequence's ratio", "3e-4 to 4e-4"
        elif not by_sequence and width < _TOKEN_CLIP:
            does, usual = "clips nearly every token's ratio", "0.2 to 0.28"
        elif not by_sequence and width > 10:
            does, usual = "never clips a token's ratio", "0.2 to 0.28"
        else:
            continue
        yield Problem(
            what=f"`{algorithm.name}` with {key} = {width:g} {does}",
            paths=(f"algorithm.{key}", "algorithm.name"),
            hint=f"{usual} is usual; null takes the algorithm's own default",
            severity="warning",
        )


def _baseline(case: Case) -> Iterator[Problem]:
    algorithm = case.recipe.algorithm
    paths = ("algorithm.reward_norm", "algorithm.advantage_norm", "algorithm.name")
    if algorithm.reward_norm == "none" and algorithm.advantage_norm == "none":
        yield Problem(
            what="rewards without any baseline push up every right answer and no wrong one down",
            paths=paths,
            hint="set `algorithm.reward_norm` to `group` or `mean_only`",
            severity="warning",
        )
    if algorithm.name != "dr_grpo":
        return
    for key, value, plain in (
        ("reward_norm", "group", "mean_only"),
        ("advantage_norm", "batch", "none"),
    ):
        if getattr(algorithm, key) == value:
            yield Problem(
                what=f"Dr. GRPO leaves out the deviation, and `{key}: {value}` divides by one",
                paths=(f"algorithm.{key}", "algorithm.name"),
                hint=f"set `algorithm.{key}` to `{plain}`",
                severity="warning",
            )


def _kl(case: Case) -> Iterator[Problem]:
    coefficient = case.recipe.algorithm.kl_coef
    if coefficient > 1:
        yield Problem(
            what=f"a KL term with the weight {coefficient:g} outweighs rewards of 0 and 1, so the "
            "policy stays where it starts",
            paths=("algorithm.kl_coef",),
            hint="published runs use 0 to 0.01",
            severity="warning",
        )
    elif 0 < coefficient < 1e-6:
        yield Problem(
            what=f"a KL term with the weight {coefficient:g} does nothing, and it keeps a second "
            "copy of the model",
            paths=("algorithm.kl_coef",),
            hint="set `algorithm.kl_coef` to 0, or to 0.001",
            severity="warning",
        )


def _optimizer(case: Case) -> Iterator[Problem]:
    optimizer = case.recipe.trainer.optimizer
    prefix = "trainer.optimizer"
    doubts = (
        (
            optimizer.lr > _HIGHEST_LR,
            "lr",
            f"a learning rate of {optimizer.lr:g} destroys a language model within a few steps",
            "published runs use 1e-6 to 5e-6",
        ),
        (
            optimizer.betas[1] < max(optimizer.betas[0], 0.5),
            "betas",
            f"betas of {list(optimizer.betas)} average the squares over less time than the "
            "gradients, so steps are unbounded",
            "the default is [0.9, 0.999]",
        ),
        (
            optimizer.eps > 1e-4,
            "eps",
            f"eps = {optimizer.eps:g} exceeds typical moments, so AdamW becomes plain descent "
            "with a tiny rate",
            "the default is 1e-8",
        ),
        (
            optimizer.weight_decay > 1,
            "weight_decay",
            f"a weight decay of {optimizer.weight_decay:g} pulls the model to zero",
            "0 to 0.1 is usual",
        ),
        (
            (optimizer.clip_norm or 1) < 1e-3,
            "clip_norm",
            f"gradients are cut to a norm of {optimizer.clip_norm or 0:g}, so nearly all are",
            "1.0 is usual; null does not clip",
        ),
        (
            (optimizer.clip_norm or 1) > 100,
            "clip_norm",
            f"gradients are cut at a norm of {optimizer.clip_norm or 0:g}, so none ever is",
            "1.0 is usual; null does not clip",
        ),
    )
    for wrong, key, what, hint in doubts:
        if wrong:
            yield Problem(what=what, paths=(f"{prefix}.{key}",), hint=hint, severity="warning")


def _temperature(case: Case) -> Iterator[Problem]:
    temperature = case.recipe.rollout.temperature
    group = case.recipe.rollout.samples_per_prompt
    if not 0.2 <= temperature <= 1.5:
        effect = (
            f"makes the {group} answers of a group nearly alike, so most groups carry no gradient"
            if temperature < 0.2
            else "samples mostly noise"
        )
        yield Problem(
            what=f"a training temperature of {temperature:g} {effect}",
            paths=("rollout.temperature", "rollout.samples_per_prompt"),
            hint="set `rollout.temperature` to 1.0",
            severity="warning",
        )


RULES = (
    _ignored_settings,
    _threshold,
    _clipping,
    _baseline,
    _kl,
    _optimizer,
    _temperature,
)
