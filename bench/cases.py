"""The cases of the bench: what is on the nodes, and how many are drained at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A workload to drain.

    Attributes:
        nodes: so many are drained at once.
        pods: on each node.
        budget: pods of a node that may be away at once; 0 is no budget. They come back on another node.
        termination: seconds that a pod takes to end.
        quick: it is part of the shortest bench, too.
    """

    name: str
    nodes: int = 1
    pods: int = 10
    budget: int = 0
    termination: float = 0.0
    quick: bool = False


CASES = (
    Case("10 pods", quick=True),
    Case("100 pods", pods=100),
    Case("30 pods behind a budget of 10", pods=30, budget=10, quick=True),
    Case("30 pods behind a budget of 1", pods=30, budget=1),
    Case("20 nodes at once, 5 s termination", nodes=20, termination=5.0),
)


def chosen(words: str, *, quick: bool = False) -> tuple[Case, ...]:
    """The cases whose names contain one of the words, separated by commas; all, or the quick ones, without a word.

    Raises `ValueError` for a word that no case has.
    """
    if not words:
        return tuple(case for case in CASES if case.quick or not quick)
    found = []
    for word in (each.strip() for each in words.split(",")):
        matching = [case for case in CASES if word in case.name]
        if not matching:
            raise ValueError(f"no case has {word!r} in its name: {'; '.join(case.name for case in CASES)}")
        found += matching
    return tuple(dict.fromkeys(found))
