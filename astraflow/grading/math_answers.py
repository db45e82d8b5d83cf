r"""
Grade one answer against its gold.

What this is: a set of rules about how people write mathematics (spelling, units, percent,
bases, intervals, lists, words), exact arithmetic for numbers, and math-verify's parser for
formulas. What it is not: a time limit. Formulas are graded in the processes of
:mod:`astraflow.grading.pool`, which are killed when they take too long.
"""

from __future__ import annotations

import re
from functools import lru_cache

from astraflow.grading.algebra import Algebra, AlgebraNeededError, NoAlgebra, UnreadableError
from astraflow.grading.boxes import AnswerPlace, find_answer, last_boxes
from astraflow.grading.compare import matches
from astraflow.grading.forms import Form, Listing, Ratio, Scalar
from astraflow.grading.limits import TooLargeError, check_length
from astraflow.grading.numerals import read_number
from astraflow.grading.reading import is_grouped_list, read
from astraflow.grading.spelling import spell
from astraflow.grading.splitting import canonical
from astraflow.grading.words import is_placeholder
from astraflow.records import Outcome

__all__ = [
    "ballot",
    "check_gold",
    "check_gold_quickly",
    "gold_text",
    "grade",
    "grade_at_once",
    "grade_quickly",
]

_LISTED = re.compile(r"\[\s*(['\"])(.*)\1\s*\]", re.DOTALL)
_NO_FORMULA = re.compile(r"\\(?:ldots|emptyset|angle|triangle|mathbb\s*\{[A-Z]\}$)")
_PLAIN_INTEGER = re.compile(r"-?\d{1,18}")
_SHORT = 64
_LONGEST_BALLOT = 200
_SIMPLE = re.compile(r"(?:[-+0-9.,/ ()$%{}]|\\[dt]?frac){1,64}")


def grade(
    *,
    gold: object,
    completion: str,
    answer: AnswerPlace = "boxed",
    truncated: bool = False,
) -> tuple[Outcome, float]:
    """
    Grade one completion in this process, without a time limit.

    Args:
        gold: The right answer; text, a number, or a list of one of these.
        completion: What the policy wrote, never the prompt.
        answer: Where an answer may stand, see :func:`astraflow.grading.boxes.find_answer`.
        truncated: True when the completion was cut at the token limit.

    Returns:
        The outcome and its reward: 1.0 for ``Outcome.RIGHT`` and 0.0 for all others.
    """
    quick = grade_quickly(gold=gold, completion=completion, answer=answer, truncated=truncated)
    if quick is not None:
        return quick
    from astraflow.grading.symbolic import SympyAlgebra

    return _paid(_judge(gold, completion, answer, truncated=truncated, algebra=SympyAlgebra()))


def grade_quickly(
    *, gold: object, completion: str, answer: AnswerPlace = "boxed", truncated: bool = False
) -> tuple[Outcome, float] | None:
    """
    Grade without computer algebra; None where only that can tell.

    Takes microseconds for integers, and never more than some tens of milliseconds.
    """
    try:
        return _paid(_judge(gold, completion, answer, truncated=truncated, algebra=NoAlgebra()))
    except AlgebraNeededError:
        return None


def grade_at_once(
    *, gold: object, completion: str, answer: AnswerPlace = "boxed", truncated: bool = False
) -> tuple[Outcome, float] | None:
    """
    Grade in a time that no completion can stretch; None for what a worker must look at.

    For event loops: only short answers of digits and signs are read here, and text that is the
    gold's own. What a policy writes otherwise is read where it can be killed.
    """
    found = find_answer(completion, place=answer, truncated=truncated)
    wanted = gold_text(gold)
    if found is None or not found.strip() or found.strip() == wanted:
        simple = len(wanted) <= _SHORT
    else:
        simple = bool(_SIMPLE.fullmatch(found) and _SIMPLE.fullmatch(wanted))
    if not simple:
        return None
    return grade_quickly(gold=gold, completion=completion, answer=answer, truncated=truncated)


def check_gold(gold: object) -> bool:
    """
    Say whether a gold can ever be matched: it reads, and its formula parses.

    Text that is identical pays even if this is False; any other spelling of it cannot.
    """
    quick = check_gold_quickly(gold)
    if quick is not None:
        return quick is Outcome.RIGHT
    from astraflow.grading.symbolic import SympyAlgebra, parse_formula

    form = _read_gold(gold_text(gold))
    if form is None:
        return False
    try:
        for leaf in _formulas(form):
            parse_formula(leaf, "gold")
        return matches(form, form, SympyAlgebra())
    except (UnreadableError, TooLargeError):
        return False


def check_gold_quickly(gold: object) -> Outcome | None:
    """Check a gold without computer algebra; None where only that can tell."""
    text = gold_text(gold)
    if _PLAIN_INTEGER.fullmatch(text):
        return Outcome.RIGHT
    form = _read_gold(text) if text else None
    if form is None:
        return Outcome.GOLD_UNPARSABLE
    if _formulas(form):
        return None
    try:
        return Outcome.RIGHT if matches(form, form, NoAlgebra()) else Outcome.GOLD_UNPARSABLE
    except AlgebraNeededError:
        return None


def ballot(answer: str) -> str:
    """
    Return what a vote counts an answer as: numbers by value, the rest by their one spelling.

    Formulas that only computer algebra could tell equal stay apart.
    """
    if len(answer) > _LONGEST_BALLOT:
        return answer  # votes are counted where nothing could stop a reader
    try:
        check_length(answer)
        spelled = spell(answer)
        number = read_number(spelled)
    except TooLargeError:
        return answer
    return str(number.value) if number is not None else canonical(spelled)


def gold_text(gold: object) -> str:
    """Turn a gold as datasets have it into text; empty for None, containers and nothing."""
    if isinstance(gold, bytes):
        return gold.decode("utf-8", errors="replace").strip()
    if isinstance(gold, (list, tuple)) and len(gold) == 1:
        return gold_text(gold[0])
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float)):
        return ""
    text = str(gold).strip()
    listed = _LISTED.fullmatch(text)
    return listed.group(2).strip() if listed else text


def _paid(outcome: Outcome) -> tuple[Outcome, float]:
    return outcome, 1.0 if outcome is Outcome.RIGHT else 0.0


def _judge(
    gold: object, completion: str, place: AnswerPlace, *, truncated: bool, algebra: Algebra
) -> Outcome:
    wanted = gold_text(gold)
    if not wanted:
        return Outcome.GOLD_UNPARSABLE
    found = find_answer(completion, place=place, truncated=truncated)
    if found is None or not found.strip():
        return Outcome.NO_ANSWER
    found = found.strip()
    if _PLAIN_INTEGER.fullmatch(found) and _PLAIN_INTEGER.fullmatch(wanted):
        return Outcome.RIGHT if int(found) == int(wanted) else Outcome.WRONG
    # what is written alike needs no reading, however large it is
    if found == wanted and not is_placeholder(wanted):
        return Outcome.RIGHT
    gold_form = _read_gold(wanted)
    if gold_form is None:
        return Outcome.GOLD_UNPARSABLE
    try:
        if _same(wanted, gold_form, found, algebra):
            return Outcome.RIGHT
        if _in_pieces(gold_form, completion, algebra):
            return Outcome.RIGHT
    except TooLargeError:
        return Outcome.UNPARSABLE
    except UnreadableError as error:
        return Outcome.GOLD_UNPARSABLE if error.side == "gold" else Outcome.UNPARSABLE
    return Outcome.WRONG


def _same(wanted: str, gold_form: Form, found: str, algebra: Algebra) -> bool:
    check_length(found)
    spelled = spell(found)
    gold_spelled = spell(wanted)
    if canonical(spelled) == canonical(gold_spelled):
        return True
    form = read(spelled)
    if form is None:
        raise UnreadableError("answer", "nothing to read")
    if matches(gold_form, form, algebra):
        return True
    listed = is_grouped_list(gold_spelled)
    if listed is None:
        return False
    items = tuple(Scalar(text=part, number=read_number(part)) for part in listed)
    return matches(Listing(items=items), form, algebra)


def _in_pieces(gold_form: Form, completion: str, algebra: Algebra) -> bool:
    r"""
    Take ``\boxed{3} and \boxed{4}`` for a gold of just as many values.

    Only a run that ends the completion's boxes counts, and only for a gold with several
    values: for a single value the last box alone is the answer.
    """
    if not isinstance(gold_form, Listing) or gold_form.ordered:
        return False
    pieces = last_boxes(completion)
    if len(pieces) != len(gold_form.items) or len(pieces) < 2:
        return False
    for piece in pieces:
        check_length(piece)
    forms = [read(spell(piece)) for piece in pieces]
    if any(form is None or isinstance(form, Listing) for form in forms):
        return False
    items = tuple(form for form in forms if form is not None)
    return matches(gold_form, Listing(items=items), algebra)


@lru_cache(maxsize=4096)
def _read_gold(text: str) -> Form | None:
    """Read a gold once for all samples of its group; None where it can pay nobody."""
    try:
        check_length(text)
        spelled = spell(text)
        return None if is_placeholder(spelled) else read(spelled)
    except TooLargeError:
        return None


def _formulas(form: object) -> list[str]:
    """Collect the leaves of a form that need computer algebra."""
    if isinstance(form, Scalar):
        simple = form.number is not None or len(form.text) == 1 or _NO_FORMULA.search(form.text)
        return [] if simple else [form.text]
    if isinstance(form, Ratio):
        return []
    if isinstance(form, (tuple, list)):
        return [leaf for part in form for leaf in _formulas(part)]
    names = [n for n in ("items", "values", "form", "rows") if hasattr(form, n)]
    return [leaf for name in names for leaf in _formulas(getattr(form, name))]
