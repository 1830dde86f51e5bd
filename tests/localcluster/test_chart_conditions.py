"""Tests for the conditions and the merged lines from which the templates of the Helm chart consist."""

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


def select(**options: str) -> frozenset[int]:
    """Return the indexes of the combinations with these options."""
    return frozenset(
        index for index, combination in enumerate(COMBINATIONS) if options.items() <= dict(combination).items()
    )


@pytest.mark.parametrize(
    ("selected", "condition"),
    [
        (ALL, ""),
        (select(mutex="true"), ".Values.mutex"),
        (select(mutex="false"), "not .Values.mutex"),
        (select(broker="kafka"), 'eq .Values.broker "kafka"'),
        (ALL - select(broker="kafka"), 'ne .Values.broker "kafka"'),
        (select(broker="kafka", mutex="true"), 'and (eq .Values.broker "kafka") .Values.mutex'),
        (
            select(broker="memory") | select(broker="kafka", console="true"),
            'or (eq .Values.broker "memory") (and (eq .Values.broker "kafka") .Values.console)',
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_condition_selects_combinations(selected: frozenset[int], condition: str) -> None:
    assert find_condition(COMBINATIONS, selected, ALL, AXES) == condition


def test_condition_names_only_what_distinguishes_existing_combinations() -> None:
    """Check that a line's condition does not repeat the condition under which its object exists."""
    existing = select(mutex="true")

    condition = find_condition(COMBINATIONS, select(broker="kafka", mutex="true"), existing, AXES)

    assert condition == 'eq .Values.broker "kafka"'


def test_selection_without_simple_condition_is_rejected() -> None:
    """Check that the generator fails, instead of writing a wrong condition, if it finds none."""
    selected = ALL - select(broker="kafka", mutex="true", console="true") - select(broker="memory", mutex="false")

    with pytest.raises(LocalClusterError, match="no condition on the chart's values selects exactly"):
        find_condition(COMBINATIONS, selected, ALL, AXES)


def test_merged_lines_contain_each_variant_in_order() -> None:
    variants = [("a", "b", "c"), ("a", "c", "d"), ("b", "a", "c")]

    merged = merge_variants(variants)

    assert [tuple(line.text for line in merged if index in line.variants) for index in range(3)] == variants
    assert MergedLine("c", frozenset({0, 1, 2})) in merged


def test_template_encloses_lines_that_differ() -> None:
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
