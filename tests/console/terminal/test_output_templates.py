"""Tests for the output formats `jsonpath` and `custom-columns`, which work as in kubectl."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.terminal.output_templates import (
    TemplateError,
    check_template,
    format_fields,
    parse_columns,
    parse_template,
)
from localcluster.cluster import LocalCluster

NODES: dict[str, Any] = {
    "items": [
        {
            "metadata": {"name": "node-1", "labels": {"app.kubernetes.io/name": "web"}},
            "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]},
            "status": {"capacity": {"pods": 110}, "ready": True},
        },
        {"metadata": {"name": "node-2"}, "spec": {}, "status": {"capacity": {"pods": 250}, "ready": False}},
    ]
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{.items[*].metadata.name}", "node-1 node-2"),
        ("{.items[0].metadata.name}", "node-1"),
        ("{.items[-1].metadata.name}", "node-2"),
        ("{.items[0:1].metadata.name}", "node-1"),
        ("{.items[7].metadata.name}", ""),
        ("{.items[0].metadata.labels.app\\.kubernetes\\.io/name}", "web"),
        ("{.items[0].metadata.labels['app.kubernetes.io/name']}", "web"),
        ("{..taints[*].key}", "a b"),
        ("{.items[0].spec.taints.*.key}", "a b"),
        ('{.items[0].spec.taints[?(@.effect=="NoExecute")].key}', "b"),
        ("{.items[?(@.status.capacity.pods>200)].metadata.name}", "node-2"),
        ("{.items[?(@.status.ready==true)].metadata.name}", "node-1"),
        ("{.items[?(@.spec.taints)].metadata.name}", "node-1"),
        ("{.items[1].status}", '{"capacity": {"pods": 250}, "ready": false}'),
        ("{$.items[1].status.capacity.pods}", "250"),
        ("names: {.items[*].metadata.name}.", "names: node-1 node-2."),
        ('{range .items[*]}{.metadata.name}{"\\t"}{.status.ready}{"\\n"}{end}', "node-1\ttrue\nnode-2\tfalse\n"),
        (
            "{range .items[*]}{range .spec.taints[*]}{.key}={$.items[1].metadata.name} {end}{end}",
            "a=node-2 b=node-2 ",
        ),
    ],
)
def test_template_selects_fields(template: str, expected: str) -> None:
    assert format_fields(NODES, f"jsonpath={template}") == expected


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("jsonpath=.items", "has no path in braces: write it as {.metadata.name}"),
        ("jsonpath={.a} {.items", "has a brace or quote without a counterpart"),
        ("jsonpath={range .items[*]}{.a}", "{range ...} has no {end}"),
        ("jsonpath={.a}{end}", "{end} has no {range ...} before it"),
        ("jsonpath={.items[0,1]}", "'[0,1]' in the path '.items[0,1]' is not supported: write .NAME"),
        ("jsonpath={items}", "'items' in the path 'items' is not supported"),
        ("jsonpath={.a[?(@.b=~'c')]}", "is not supported"),
        ("jsonpath={.a[?(@.b==c)]}", "c is not a value: write a number, true, false or quoted text"),
        ("jsonpath={.a[?(@.b<null)]}", "null is not a value: write a number, true, false or quoted text"),
        ("jsonpath={.a[?(@.b>[])]}", "[] is not a value: write a number, true, false or quoted text"),
        ("custom-columns=", "'' is not a column: write HEADING:PATH"),
        ("custom-columns=NAME", "'NAME' is not a column"),
        ("custom-columns=NAME:.a,", "'' is not a column"),
        ("custom-columns=NAME:.a[", "'[' is not a column"),
    ],
)
def test_error_names_unsupported_part_of_template(output: str, message: str) -> None:
    with pytest.raises(TemplateError) as raised:
        check_template(output)
    assert message in str(raised.value)


def test_custom_columns_have_one_row_per_object() -> None:
    """Check that a list has one row per item, any other object one row, and that missing fields are `<none>`."""
    columns = "NAME:.metadata.name,TAINTS:{.spec.taints[*].key},READY:status.ready"

    assert format_fields(NODES, f"custom-columns={columns}") == (
        "NAME     TAINTS   READY\nnode-1   a,b      true\nnode-2   <none>   false\n"
    )
    assert format_fields(NODES["items"][0], "custom-columns=NAME:.metadata.name") == "NAME\nnode-1\n"
    assert [heading for heading, _ in parse_columns("A:.b[?(@.c=='x,y')].d,E:.f")] == ["A", "E"]
    assert len(parse_template("{.a}{.b}")) == 2


KUBECTL_TEMPLATES = (
    "{.items[*].metadata.name}",
    '{range .items[*]}{.metadata.name}{"\\t"}{.metadata.labels.kubernetes\\.io/hostname}{"\\n"}{end}',
    '{.items[?(@.metadata.name=="default")].metadata.name}',
    "{.items[0].metadata.labels['kubernetes\\.io/metadata\\.name']}",
    "{.items[-1:].kind}",
    "{.kind}: {..phase}",
)


@pytest.mark.parametrize("output", [*(f"jsonpath={template}" for template in KUBECTL_TEMPLATES)])
def test_template_output_equals_output_of_kubectl(installed_cluster: LocalCluster, output: str) -> None:
    """Check that supported templates give the same output as kubectl for the cluster's namespaces."""
    namespaces = json.loads(installed_cluster.kubectl("get", "namespaces", "-o", "json").stdout)

    assert format_fields(namespaces, output) == installed_cluster.kubectl("get", "namespaces", "-o", output).stdout


def test_custom_columns_equal_those_of_kubectl(installed_cluster: LocalCluster) -> None:
    spec = "NAME:.metadata.name,PHASE:.status.phase,NONE:.spec.nothing,FINALIZERS:.spec.finalizers[*]"
    namespaces = json.loads(installed_cluster.kubectl("get", "namespaces", "-o", "json").stdout)
    expected = installed_cluster.kubectl("get", "namespaces", "-o", f"custom-columns={spec}").stdout

    rows = [line.split() for line in format_fields(namespaces, f"custom-columns={spec}").splitlines()]
    assert rows == [line.split() for line in expected.splitlines()]
