"""The rooms: who may import whom, and one name for each step everywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from functions.app import FUNCTIONS
from tests.sources import ROOT, mirror_of, source_of

MAY_IMPORT = {
    "kube": {"kube"},
    "eventing": {"eventing", "kube"},
    "functions": {"functions", "eventing", "kube"},
    "console": {"console", "eventing", "kube"},
}
CALLS_FUNCTIONS = Path("console/operations/inprocess.py")
"""Replay can run a function in its own process, to be stopped in by a debugger."""
ROOMS = {*MAY_IMPORT, "localcluster", "tests"}
MODULES = [path for room in MAY_IMPORT for path in sorted((ROOT / room).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Top-level packages that the module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    """Design, rooms: `kube` and `eventing` import no room above them; `functions` and `console` not each other."""
    room = path.relative_to(ROOT).parts[0]
    more = {"functions"} if path.relative_to(ROOT) == CALLS_FUNCTIONS else set()

    assert imported(path) & ROOMS <= MAY_IMPORT[room] | more


def test_only_one_door_leads_to_the_kubernetes_package() -> None:
    """Design, rooms: `kube/door/api.py` alone imports `kubernetes`."""
    assert [path.relative_to(ROOT) for path in MODULES if "kubernetes" in imported(path)] == [Path("kube/door/api.py")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_has_one_name_everywhere(name: str) -> None:
    """Design, rooms: file, function, route, Trigger, ServiceAccount and test of a step share its name."""
    source = ast.parse(source_of(name).read_text())
    rights = list(yaml.safe_load_all((ROOT / "manifests/base/rbac" / f"{name}.yaml").read_text()))
    triggers = list(yaml.safe_load_all((ROOT / "manifests/base/eventing/triggers.yaml").read_text()))

    assert any(isinstance(node, ast.FunctionDef) and node.name == name for node in source.body)
    assert FUNCTIONS[name].step.__name__ == name
    assert any(item["kind"] == "ServiceAccount" and item["metadata"]["name"] == name for item in rights)
    assert any(item["spec"]["subscriber"]["ref"]["name"] == name for item in triggers)
    assert mirror_of(name).exists()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_comes_in_goes_out_and_is_touched(name: str) -> None:
    """Design rule 7: each function's module docstring says In, Out and Touches."""
    said = ast.get_docstring(ast.parse(source_of(name).read_text())) or ""

    assert all(word in said for word in ("In: ", "Out: ", "Touches: "))
