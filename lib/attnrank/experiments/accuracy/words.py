"""The words of the verdict, by how many of the complete comparisons are seen: a page says them as its table has it."""

from __future__ import annotations

from dataclasses import dataclass

from attnrank import _check


@dataclass(frozen=True)
class Words:
    """How a page speaks of a prediction that was seen in some of the comparisons.

    ``support`` is what the comparisons do to the claim, ``found`` how much speaks for it.
    """

    support: str
    found: str


#: Up to which share of the comparisons seen which words are said.
WORDS = {
    0.0: Words("do not support the claim", "nothing"),
    0.25: Words("hardly support the claim", "little"),
    0.75: Words("support the claim in part", "something"),
    1.0: Words("support the claim", "much"),
}


def words(seen: int, complete: int) -> Words:
    """The words for so many comparisons that are seen of so many that are complete, at least 1.

    Raises ValueError for more that are seen than are complete.
    """
    complete = _check.integer("complete", complete, minimum=1)
    if _check.integer("seen", seen, minimum=0) > complete:
        raise ValueError(f"seen must be at most the {complete} that are complete, got {seen}")
    return next(said for limit, said in WORDS.items() if seen / complete <= limit)


def listed(names: list[str]) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c"; "none" where there is none."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none"
