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
    assert FUNCTIONS[name].run.__name__ == name
    assert any(item["kind"] == "ServiceAccount" and item["metadata"]["name"] == name for item in rights)
    assert any(item["spec"]["subscriber"]["ref"]["name"] == name for item in triggers)
    assert mirror_of(name).exists()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_comes_in_goes_out_and_is_touched(name: str) -> None:
    """Design rule 7: each function's module docstring says In, Out and Touches."""
    said = ast.get_docstring(ast.parse(source_of(name).read_text())) or ""

    assert all(word in said for word in ("In: ", "Out: ", "Touches: "))


# Inside `console/`

CONSOLE_MAY_IMPORT = {
    "commands": {"terminal", "operations"},
    "terminal": {"terminal", "operations"},
    "web": {"web", "operations"},
    "operations": {"operations"},
}
"""Sub-room → sub-rooms that its modules import; a command is no library of another command."""
STARTS_THE_PAGES = (Path("console/commands/console.py"), "console.web.serving")
INTERFACES = {"click", "flask", "rich"}
"""What a terminal or a page is made with."""
CONSOLE = [path for room in CONSOLE_MAY_IMPORT for path in sorted((ROOT / "console" / room).glob("*.py"))]


def imported_modules(path: Path) -> set[str]:
    """Full names of the modules that the module imports, also inside its functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("path", CONSOLE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_console_imports_towards_its_operations(path: Path) -> None:
    """Design, rooms: commands → terminal, operations; terminal and web → operations; operations import neither."""
    room = path.relative_to(ROOT).parts[1]
    allowed_module = STARTS_THE_PAGES[1] if path.relative_to(ROOT) == STARTS_THE_PAGES[0] else ""
    names = {name for name in imported_modules(path) if not (allowed_module and name.startswith(allowed_module))}

    assert {parts[1] for name in names if (parts := name.split("."))[0] == "console" and len(parts) > 2} <= (
        CONSOLE_MAY_IMPORT[room]
    )


@pytest.mark.parametrize("name", sorted(CONSOLE_MAY_IMPORT))
def test_a_room_of_the_console_holds_one_thing(name: str) -> None:
    """Design, rooms: a folder has at most about 15 modules, and the list of sub-rooms here is whole."""
    assert {path.name for path in (ROOT / "console").iterdir() if (path / "__init__.py").exists()} == set(
        CONSOLE_MAY_IMPORT
    )
    assert len(list((ROOT / "console" / name).glob("[a-z]*.py"))) <= 15


@pytest.mark.parametrize(
    "path",
    [path for path in CONSOLE if path.relative_to(ROOT).parts[1] == "operations"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_operations_know_neither_terminal_nor_pages(path: Path) -> None:
    """Operations import no click, no Flask, no rich: both sides render what they return."""
    assert not imported(path) & INTERFACES


@pytest.mark.parametrize(
    "path",
    [path for path in CONSOLE if path.relative_to(ROOT).parts[1] == "web"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_pages_know_no_terminal(path: Path) -> None:
    """The web console imports no click and no rich."""
    assert not imported(path) & {"click", "rich"}
