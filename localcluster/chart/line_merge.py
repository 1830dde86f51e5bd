"""Merges the variants of an object's YAML into one template, in which conditions enclose the lines that differ."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from localcluster.chart.conditions import Axis, Combination, find_condition

Lines = tuple[str, ...]
END = "{{- end }}"


class MergedLine(NamedTuple):
    """A line, and the indexes of the variants that contain it."""

    text: str
    variants: Set[int]


def merge_variants(variants: Sequence[Lines]) -> list[MergedLine]:
    """Return lines of which each variant is a subsequence: exactly the lines with its index."""
    merged: list[MergedLine] = []
    for index, lines in enumerate(variants):
        matcher = difflib.SequenceMatcher(None, [line.text for line in merged], lines, autojunk=False)
        result: list[MergedLine] = []
        for operation, start, end, new_start, new_end in matcher.get_opcodes():
            if operation == "equal":
                result += [MergedLine(line.text, line.variants | {index}) for line in merged[start:end]]
            else:
                result += merged[start:end]
                result += [MergedLine(text, frozenset({index})) for text in lines[new_start:new_end]]
        merged = result
    return merged


def build_template(texts: Mapping[int, Lines], combinations: Sequence[Combination], axes: Sequence[Axis]) -> list[str]:
    """Return the lines of a template that renders the given text for each combination.

    Args:
        texts: The object's text for the index of each combination that contains the object.
        combinations: All combinations.
        axes: The values that conditions may name.
    """
    variants = list(dict.fromkeys(texts.values()))
    indexes = [frozenset(index for index, text in texts.items() if text == variant) for variant in variants]
    template: list[str] = []
    for members, lines in itertools.groupby(merge_variants(variants), key=lambda line: line.variants):
        selected = frozenset().union(*(indexes[variant] for variant in members))
        condition = find_condition(combinations, selected, texts.keys(), axes)
        template += enclose([line.text for line in lines], condition)
    return template


def enclose(lines: Sequence[str], condition: str) -> list[str]:
    """Return the lines, in an `if` block unless the condition is empty."""
    return [f"{{{{- if {condition} }}}}", *lines, END] if condition else [*lines]
