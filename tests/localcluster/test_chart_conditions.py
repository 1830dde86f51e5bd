"""Tests for the conditions and the merged lines that make up the Helm chart's templates."""

from __future__ import annotations

import itertools

import pytest

from localcluster.chart.conditions import Axis, Combination, find_condition
from localcluster.chart.line_merge import MergedLine, build_template, merge_variants
from localcluster.errors import LocalClusterError

BROKER, MUTEX, CONSOLE = Axis("broker", ("memory", "rabbitmq", "kafka")), Axis("mutex"), Axis("console")
AXES = (BROKER, MUTEX, CONSOLE)
COMBINATIONS: list[Combination] = [
    dict(zip(("broker", "mutex", "console"), options, strict=True))
    for options in itertools.product(*(axis.options for axis in AXES))
]
ALL = frozenset(range(len(COMBINATIONS)))


def select_combinations(**options: str) -> frozenset[int]:
    """Return the indexes of the combinations that have these options."""
    return frozenset(
        index for index, combination in enumerate(COMBINATIONS) if options.items() <= dict(combination).items()
    )


@pytest.mark.parametrize(
    ("selected", "condition"),
    [
        (ALL, ""),
        (select_combinations(mutex="true"), ".Values.mutex"),
        (select_combinations(mutex="false"), "not .Values.mutex"),
        (select_combinations(broker="kafka"), 'eq .Values.broker "kafka"'),
        (ALL - select_combinations(broker="kafka"), 'ne .Values.broker "kafka"'),
        (select_combinations(broker="kafka", mutex="true"), 'and (eq .Values.broker "kafka") .Values.mutex'),
        (
            select_combinations(broker="memory") | select_combinations(broker="kafka", console="true"),
            'or (eq .Values.broker "memory") (and (eq .Values.broker "kafka") .Values.console)',
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_condition_matches_only_given_combinations(selected: frozenset[int], condition: str) -> None:
    assert find_condition(COMBINATIONS, selected, ALL, AXES) == condition


def test_line_condition_omits_condition_of_its_object() -> None:
    """Check that the condition of a line does not repeat the condition under which the line's object exists."""
    existing = select_combinations(mutex="true")

    condition = find_condition(COMBINATIONS, select_combinations(broker="kafka", mutex="true"), existing, AXES)

    assert condition == 'eq .Values.broker "kafka"'


def test_set_of_combinations_without_simple_condition_is_rejected() -> None:
    """Check that the generator fails if it finds no condition, instead of writing a wrong one."""
    selected = (
        ALL
        - select_combinations(broker="kafka", mutex="true", console="true")
        - select_combinations(broker="memory", mutex="false")
    )

    with pytest.raises(LocalClusterError, match="no condition on the chart's values selects exactly"):
        find_condition(COMBINATIONS, selected, ALL, AXES)


def test_merged_lines_contain_lines_of_each_combination_in_order() -> None:
    variants = [("a", "b", "c"), ("a", "c", "d"), ("b", "a", "c")]

    merged = merge_variants(variants)

    assert [tuple(line.text for line in merged if index in line.variants) for index in range(3)] == variants
    assert MergedLine("c", frozenset({0, 1, 2})) in merged


def test_template_encloses_differing_lines_in_conditions() -> None:
    texts = {
        index: ("kind: Broker", f"class: {combination['broker']}", "spec: {}")
        for index, combination in enumerate(COMBINATIONS)
    }

    assert build_template(texts, COMBINATIONS, AXES) == [
        "kind: Broker",
        '{{- if eq .Values.broker "memory" }}',
        "class: memory",
        "{{- end }}",
        '{{- if eq .Values.broker "rabbitmq" }}',
        "class: rabbitmq",
        "{{- end }}",
        '{{- if eq .Values.broker "kafka" }}',
        "class: kafka",
        "{{- end }}",
        "spec: {}",
    ]
