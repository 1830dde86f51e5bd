"""Finds the condition on the chart's values that selects a set of value combinations. Pure functions.

A template line that occurs only with some values is enclosed in such a condition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from localcluster.errors import LocalClusterError

BOOLEANS = ("false", "true")
Combination = Mapping[str, str]
"""The path of each value, and the value as a template compares it: `true` and `false` for a switch."""


@dataclass(frozen=True)
class Axis:
    """A value of the chart that changes which objects exist, or what they contain.

    Attributes:
        path: The path in values.yaml, such as `components.mutex`.
        options: The possible values; the values of a switch are `BOOLEANS`.
    """

    path: str
    options: tuple[str, ...] = BOOLEANS

    def format_condition(self, selected: Collection[str]) -> str:
        """Return the template expression that is true for the selected options."""
        reference = f".Values.{self.path}"
        if self.options == BOOLEANS:
            return reference if "true" in selected else f"not {reference}"
        excluded = [option for option in self.options if option not in selected]
        if len(selected) == 1:
            return f'eq {reference} "{next(iter(selected))}"'
        if len(excluded) == 1:
            return f'ne {reference} "{excluded[0]}"'
        names = " ".join(f'"{option}"' for option in self.options if option in selected)
        return f"has {reference} (list {names})"


Box = dict[Axis, Set[str]]
"""For some axes, the selected options; a combination is in the box if it has one of them for each of these axes."""


def find_condition(
    combinations: Sequence[Combination], selected: Set[int], existing: Set[int], axes: Sequence[Axis]
) -> str:
    """Return the template expression that is true for the selected combinations, or "" if all existing are selected.

    The expression is false for the other existing combinations. Its value for combinations that do not exist is not
    defined. The function omits every part that is not needed, those of later axes first.

    Raises `LocalClusterError` if no expression of a supported form selects exactly these combinations.
    """
    if selected == existing:
        return ""
    chosen = [combinations[index] for index in sorted(selected)]
    others = [combinations[index] for index in sorted(existing - selected)]
    return _format_template_call("or", [_format_box(box) for box in _find_boxes(chosen, others, axes)])


def _find_boxes(chosen: Sequence[Combination], others: Sequence[Combination], axes: Sequence[Axis]) -> list[Box]:
    """Return boxes that together contain the chosen combinations and no other; one box if possible."""
    box = _find_box(chosen, others, axes)
    if box is not None:
        return [box]
    for axis in axes:
        parts = defaultdict(list)
        for combination in chosen:
            parts[combination[axis.path]].append(combination)
        boxes = [_find_box(part, others, axes) for part in parts.values()]
        found = [candidate for candidate in boxes if candidate is not None]
        if len(parts) > 1 and len(found) == len(boxes):
            return found
    raise LocalClusterError(f"no condition on the chart's values selects exactly {[dict(item) for item in chosen]}")


def _find_box(chosen: Sequence[Combination], others: Sequence[Combination], axes: Sequence[Axis]) -> Box | None:
    """Return the box with the fewest axes that contains all chosen combinations, or None if it contains another one."""
    box: Box = {axis: frozenset(combination[axis.path] for combination in chosen) for axis in axes}
    if any(_is_combination_in_box(box, other) for other in others):
        return None
    for axis in reversed(axes):
        reduced = {kept: options for kept, options in box.items() if kept != axis}
        if not any(_is_combination_in_box(reduced, other) for other in others):
            box = reduced
    return box


def _is_combination_in_box(box: Box, combination: Combination) -> bool:
    return all(combination[axis.path] in options for axis, options in box.items())


def _format_box(box: Box) -> str:
    return _format_template_call("and", [axis.format_condition(options) for axis, options in box.items()])


def _format_template_call(function: str, expressions: Sequence[str]) -> str:
    """Return the call of `and` or `or` with these expressions, or the only expression itself."""
    if len(expressions) == 1:
        return expressions[0]
    return " ".join([function, *(f"({item})" if " " in item else item for item in expressions)])
