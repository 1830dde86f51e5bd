"""The rooms: who may import whom, one name for each step everywhere, and no folder that holds two things."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.app import FUNCTIONS
from tests.sources import ROOT, mirror_of, rights_of, source_of

WINGS = ("maintenance", "mutex", "virtualization", "certificates", "admission", "cpu_labels")
"""Systems of the field. A wing has a folder of its name in `functions` and, for its rules, in `kube`."""
RULES = {wing: f"kube/{wing}" for wing in WINGS} | {"cpu_labels": "kube/cpu"}
"""Wing → the folder of its rules. Those of CPUs are about more than labels."""
EVENTING = ("eventing", "eventing/local", "eventing/podsource", "eventing/journal", "eventing/replay")
KUBE = ("kube", "kube/door", *RULES.values())
MAY_IMPORT = {
    "kube": ("kube",),
    "kube/door": ("kube", "kube/door"),
    **{folder: ("kube", folder) for folder in RULES.values()},
    "eventing": ("eventing",),
    **{folder: ("eventing", folder, *KUBE) for folder in EVENTING[1:]},
    "eventing/replay": ("eventing", "eventing/journal", "eventing/replay", *KUBE),
    "functions": ("functions", "eventing", "eventing/journal", "kube", "kube/door"),
    "functions/serving": ("functions", "functions/serving", "eventing", "eventing/journal", "kube", "kube/door"),
    **{
        f"functions/{wing}": ("functions", f"functions/{wing}", "eventing", "kube", "kube/door", folder)
        for wing, folder in RULES.items()
    },
    # Admission judges NodeMaintenances before they are there, by the rules that hold for them later.
    "kube/admission": ("kube", "kube/maintenance", "kube/admission"),
    "functions/admission": (
        *("functions", "functions/admission", "eventing"),
        *("kube", "kube/door", "kube/maintenance", "kube/admission"),
    ),
    "console": ("console/commands", "console/terminal"),
    "console/commands": ("console/terminal", "console/operations", *EVENTING, *KUBE),
    "console/terminal": ("console/terminal", "console/operations", *EVENTING, *KUBE),
    "console/web": ("console/web", "console/operations", *EVENTING, *KUBE),
    "console/operations": ("console/operations", *EVENTING, *KUBE),
}
"""Folder → folders whose modules its own may import."""
EXCEPTIONS = {
    # A wing's one module that asks the API server.
    **{f"{folder}/lookup.py": ("kube/door",) for folder in RULES.values()},
    # A release asks who maintains the node, and so do the same rules by which a drain finds that.
    "kube/mutex/lookup.py": ("kube/door", "kube/maintenance"),
    "kube/virtualization/lookup.py": (
        "kube/door",
        "kube/maintenance",
    ),  # whose drain the launcher pods of a node concern
    "functions/admission/__main__.py": ("functions/serving",),  # the program that serves the webhook
    "functions/app.py": ("functions/serving", *(f"functions/{wing}" for wing in WINGS)),  # the list of all functions
    "console/commands/console.py": ("console/web",),  # the command that starts the pages
    "console/operations/inprocess.py": ("functions", "functions/serving"),  # replay in the own process, for a debugger
}
"""Module → what it may import beside what its folder may, and why."""
ROOMS = ("functions", "eventing", "kube", "console", "localcluster", "bench", "chaos", "tests")
PRODUCT = ROOMS[:4]
MOST_MODULES = 16
MODULES = [path for room in PRODUCT for path in sorted((ROOT / room).rglob("*.py"))]
HEAVY = (
    *("sqlalchemy", "rich", "croniter", "opentelemetry"),
    *("yaml", "requests", "urllib3", "charset_normalizer", "cryptography"),
    *("kubernetes.client.configuration", "kubernetes.aio.client.models", "pydantic", "oauthlib", "websocket"),
)
"""Libraries, and parts of them, that no function needs to answer an event, or not before it has started."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all that the module imports, within functions, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(path: Path) -> set[str]:
    """Top-level packages that the module imports."""
    return {name.split(".")[0] for name in imports(path)}


def folder_of(imported: str) -> str:
    """The folder of ours that an imported name is from: of the module, whether it or something in it is named."""
    parts = imported.split(".")
    for length in range(len(parts), 0, -1):
        if ROOT.joinpath(*parts[:length]).with_suffix(".py").is_file():
            return "/".join(parts[: length - 1])
    return "/".join(part for part in parts if ROOT.joinpath(*parts[: parts.index(part) + 1]).is_dir())


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_what_its_folder_may(path: Path) -> None:
    """Design, rooms: rules know no door, wings no other wing, pages no command, `kube` and `eventing` nobody above."""
    ours = {folder_of(name) for name in imports(path) if name.split(".")[0] in ROOMS}
    allowed = MAY_IMPORT[name_of(path.parent)] + EXCEPTIONS.get(name_of(path), ())

    assert ours <= set(allowed)


def test_the_arrows_are_those_of_folders_that_are_there() -> None:
    """Every folder with modules has its arrows, and every exception is a module that needs it."""
    assert {name_of(path.parent) for path in MODULES} <= MAY_IMPORT.keys()
    for module, more in EXCEPTIONS.items():
        if (ROOT / module).exists():
            assert {folder_of(name) for name in imports(ROOT / module)} & set(more), module


def test_only_one_door_leads_to_the_kubernetes_package() -> None:
    """Design, rooms: `kube/door/config.py` alone imports `kubernetes`."""
    assert [name_of(path) for path in MODULES if "kubernetes" in packages(path)] == ["kube/door/config.py"]


def test_rules_know_no_client() -> None:
    """Design, rooms: rules are pure; what speaks HTTP, or awaits, is no rule."""
    rules = [path for path in MODULES if name_of(path.parent) in ("kube", *RULES.values())]
    impure = {name_of(path) for path in rules if packages(path) & {"aiohttp", "requests", "asyncio", "threading"}}

    assert impure <= {f"{folder}/lookup.py" for folder in RULES.values()}


def test_operations_know_neither_terminal_nor_page() -> None:
    """Design, rooms: what commands and pages both do imports no click, no Flask, no rich."""
    operations = [path for path in MODULES if name_of(path.parent) == "console/operations"]
    pages = [path for path in MODULES if name_of(path.parent) == "console/web"]

    assert {name_of(path) for path in operations if packages(path) & {"click", "flask", "rich"}} == set()
    assert {name_of(path) for path in pages if packages(path) & {"click", "rich"}} == set()


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_a_folder_holds_one_thing(room: str) -> None:
    """Design, rooms: a folder with more than about 15 modules holds two things."""
    modules = [path for path in (ROOT / room).rglob("*.py") if path.stem != "__init__"]
    counts = Counter(name_of(path.parent) for path in modules)

    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_tests_mirror_the_rooms() -> None:
    """Design, rooms: who looks for the tests of a folder finds them under its name."""
    modules = [path for room in PRODUCT for path in (ROOT / "tests" / room).rglob("*.py")]
    folders = {path.parent.relative_to(ROOT / "tests") for path in modules}

    assert [folder.as_posix() for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []


@cache
def chain() -> list[dict[str, Any]]:
    """All that is shipped of Knative Eventing."""
    files = [ROOT / "manifests/base/eventing/triggers.yaml", *ROOT.glob("manifests/components/*/eventing.yaml")]
    return [item for file in files for item in yaml.safe_load_all(file.read_text())]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_has_one_name_everywhere(name: str) -> None:
    """Design, rooms: file, function, route, Trigger, ServiceAccount and test of a step share its name."""
    source = ast.parse(source_of(name).read_text())
    rights = list(yaml.safe_load_all(rights_of(name).read_text()))
    triggers = [item for item in chain() if item["kind"] == "Trigger"]
    step = name.replace("-", "_")  # no object of Kubernetes is called as Python calls a function of two words

    assert any(isinstance(node, ast.FunctionDef) and node.name == step for node in source.body)
    assert FUNCTIONS[name].step.__name__ == source_of(name).stem == step
    assert any(item["kind"] == "ServiceAccount" and item["metadata"]["name"] == name for item in rights)
    assert any(item["spec"]["subscriber"]["ref"]["name"] == name for item in triggers)
    assert mirror_of(name).exists()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_names_what_comes_in_goes_out_and_is_touched(name: str) -> None:
    """Design rule 7: each function's module docstring says In, Out and Touches."""
    documentation = ast.get_docstring(ast.parse(source_of(name).read_text())) or ""

    assert all(word in documentation for word in ("In: ", "Out: ", "Touches: "))


def loaded(code: str, names: Iterable[str]) -> list[str]:
    """Which of these modules are there after this code, in a process of its own."""
    code = f"{code}; import sys; print(*[name for name in {tuple(names)!r} if name in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()


def test_a_function_starts_without_what_only_others_need() -> None:
    """A function that scales from zero waits for its imports: no database and no command line is among them."""
    assert loaded("import functions.app", HEAVY) == []


@pytest.mark.parametrize("module", ["functions.app", "eventing.local.broker"])
def test_no_certificates_are_read_before_they_are_used(module: str) -> None:
    """The contexts that aiohttp makes for itself are late wherever it is imported by one of these first."""
    code = f"import {module}, aiohttp.connector as it; print(type(it._SSL_CONTEXT_VERIFIED).__name__)"

    assert loaded(code, ()) == ["LateContext"]


def test_what_only_starts_a_cluster_imports_none_of_it() -> None:
    """`make up` waits for a supervisor, `make status` reads a file: neither speaks HTTP, nor serves a function."""
    code = "import localcluster.__main__; from localcluster.up import down, start, status"

    assert loaded(code, (*HEAVY, "aiohttp", "asyncio", "flask", "localcluster.cluster")) == []
