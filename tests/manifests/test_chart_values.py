"""Tests that values.yaml, its schema, the generator of the templates and Chart.yaml agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from localcluster.chart.combinations import AXES, DEFAULTS
from localcluster.chart.conditions import BOOLEANS
from tests.chart_values import CHART, SCHEMA_FILE, VALUES_FILE, list_chart_values, read_schema
from tests.manifests.documented_commands import read_commands
from tests.sources import ROOT

VALUES = {value.path: value for value in list_chart_values()}
VERSION_PATTERN = re.compile(r'^version = "(.*)"$', re.MULTILINE)


def test_each_value_has_description_and_schema() -> None:
    assert [value.path for value in VALUES.values() if not value.description.endswith(".")] == []
    assert all({"type", "enum"} & set(read_schema(path)) for path in VALUES)


def test_schema_has_no_other_values() -> None:
    """Check that the schema accepts exactly the values in values.yaml, besides `global`, which Helm sets."""
    assert set(list_schema_paths(json.loads(SCHEMA_FILE.read_text()))) == {*VALUES, "global"}


def list_schema_paths(schema: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the paths of the values in a schema, and assert that it rejects unknown values."""
    assert schema["additionalProperties"] is False
    paths = []
    for name, child in schema["properties"].items():
        path = f"{prefix}{name}"
        paths += list_schema_paths(child, f"{path}.") if "properties" in child else [path]
    return paths


@pytest.mark.parametrize("file", [VALUES_FILE, *sorted((CHART / "ci").iterdir())], ids=lambda file: file.name)
def test_schema_accepts_defaults_and_ci_values(file: Path) -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft7Validator.check_schema(schema)

    jsonschema.Draft7Validator(schema).validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    "values",
    [
        {"delivery": "nats"},
        {"function": "compact"},
        {"components": {"mutex": "yes"}},
        {"image": {"repository": "https://registry.example/nodemaintenance"}},
        {"image": {"repository": "registry.example/nodemaintenance:v1"}},
        {"image": {"pullSecrets": [{"name": "registry"}]}},
        {"journal": {"size": "big"}},
    ],
    ids=json.dumps,
)
def test_schema_rejects_invalid_values(values: dict[str, Any]) -> None:
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA_FILE.read_text()))

    assert not validator.is_valid(values)


def test_generator_knows_options_and_defaults_of_each_value() -> None:
    """Check that the options from which the templates are generated are those of the schema, with equal defaults."""
    for axis in AXES:
        schema = read_schema(axis.path)
        options = BOOLEANS if schema.get("type") == "boolean" else tuple(schema["enum"])
        assert axis.options == options, axis.path
        assert str(json.loads(VALUES[axis.path].default)).lower() == DEFAULTS[axis.path].lower(), axis.path
    choices = {path for path in VALUES if "enum" in read_schema(path) or read_schema(path)["type"] == "boolean"}
    assert choices == {axis.path for axis in AXES} | {"signing.createSecret", "uninstall.check"}


def test_chart_has_version_of_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (version,) = VERSION_PATTERN.findall((ROOT / "pyproject.toml").read_text())

    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert chart["name"] == CHART.name


def test_install_page_has_commands_of_helm_page() -> None:
    """Check that docs/install.md has the commands of docs/helm.md, which run in tests/real/test_helm.py."""
    commands = read_commands("helm.md", "Install")

    assert [command.split()[:2] for command in commands] == [
        ["make", "container-build-and-push-community"],
        ["helm", "install"],
        ["kubectl", "wait"],
        ["helm", "test"],
    ]
    assert read_commands("install.md", "Install with Helm instead") == commands
