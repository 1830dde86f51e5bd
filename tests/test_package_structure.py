"""The package structure: allowed imports, one name for each step, and a limited number of modules per package."""

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
"""Optional components and `maintenance`. Each has a package in `functions` and, for its rules, one in `kube`."""
RULES = {wing: f"kube/{wing}" for wing in WINGS} | {"cpu_labels": "kube/cpu"}
"""Component → the package of its rules. The rules for CPUs cover more than labels."""
EVENTING = ("eventing", "eventing/local", "eventing/podsource", "eventing/journal", "eventing/replay")
KUBE = ("kube", "kube/client", *RULES.values())
MAY_IMPORT = {
    "kube": ("kube",),
    "kube/client": ("kube", "kube/client"),
    **{folder: ("kube", folder) for folder in RULES.values()},
    "eventing": ("eventing",),
    **{folder: ("eventing", folder, *KUBE) for folder in EVENTING[1:]},
    "eventing/replay": ("eventing", "eventing/journal", "eventing/replay", *KUBE),
    "functions": ("functions", "eventing", "eventing/journal", "kube", "kube/client"),
    "functions/serving": ("functions", "functions/serving", "eventing", "eventing/journal", "kube", "kube/client"),
    **{
        f"functions/{wing}": ("functions", f"functions/{wing}", "eventing", "kube", "kube/client", folder)
        for wing, folder in RULES.items()
    },
    # Admission checks NodeMaintenances before they exist, with the rules that apply to them later.
    "kube/admission": ("kube", "kube/maintenance", "kube/admission"),
    "functions/admission": (
        *("functions", "functions/admission", "eventing"),
        *("kube", "kube/client", "kube/maintenance", "kube/admission"),
    ),
    "console": ("console/commands", "console/terminal"),
    "console/commands": ("console/terminal", "console/operations", *EVENTING, *KUBE),
    "console/terminal": ("console/terminal", "console/operations", *EVENTING, *KUBE),
    "console/web": ("console/web", "console/operations", *EVENTING, *KUBE),
    "console/operations": ("console/operations", *EVENTING, *KUBE),
}
"""Package → packages whose modules its own modules may import."""
EXCEPTIONS = {
    # A component's one module that reads from the API server.
    **{f"{folder}/lookup.py": ("kube/client",) for folder in RULES.values()},
    # A release of a node depends on who maintains it, and a drain finds that with the same rules.
    "kube/mutex/lookup.py": ("kube/client", "kube/maintenance"),
    "kube/virtualization/lookup.py": (
        "kube/client",
        "kube/maintenance",
    ),  # whose drain moves a node's virt-launcher pods
    "functions/admission/__main__.py": ("functions/serving",),  # the program that serves the webhook
    "functions/app.py": ("functions/serving", *(f"functions/{wing}" for wing in WINGS)),  # the list of all functions
    "console/commands/console.py": ("console/web",),  # the command that serves the pages
    "console/operations/in_process.py": ("functions", "functions/serving"),  # replay within the process, for a debugger
}
"""Module → packages that it may import in addition to those of its package, with the reason."""
ROOMS = ("functions", "eventing", "kube", "console", "localcluster", "bench", "chaos", "tests")
PRODUCT = ROOMS[:4]
MOST_MODULES = 16
MODULES = [path for room in PRODUCT for path in sorted((ROOT / room).rglob("*.py"))]
HEAVY = (
    *("sqlalchemy", "rich", "croniter", "opentelemetry"),
    *("yaml", "requests", "urllib3", "charset_normalizer", "cryptography"),
    *("kubernetes.client.configuration", "kubernetes.aio.client.models", "pydantic", "oauthlib", "websocket"),
)
"""Libraries, and parts of them, that a function does not need, or needs only after its start."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names of all imports of the module, including those within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(path: Path) -> set[str]:
    """Return the top-level packages that the module imports."""
    return {name.split(".")[0] for name in imports(path)}


def folder_of(imported: str) -> str:
    """Return the package of this repository that contains the imported module or the imported name."""
    parts = imported.split(".")
    for length in range(len(parts), 0, -1):
        if ROOT.joinpath(*parts[:length]).with_suffix(".py").is_file():
            return "/".join(parts[: length - 1])
    return "/".join(part for part in parts if ROOT.joinpath(*parts[: parts.index(part) + 1]).is_dir())


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_what_its_folder_may(path: Path) -> None:
    """Design, packages: a module imports only the packages that `MAY_IMPORT` and `EXCEPTIONS` allow."""
    ours = {folder_of(name) for name in imports(path) if name.split(".")[0] in ROOMS}
    allowed = MAY_IMPORT[name_of(path.parent)] + EXCEPTIONS.get(name_of(path), ())

    assert ours <= set(allowed)


def test_the_arrows_are_those_of_folders_that_are_there() -> None:
    """Check that every package with modules has an entry, and that every exception belongs to a module that uses it."""
    assert {name_of(path.parent) for path in MODULES} <= MAY_IMPORT.keys()
    for module, more in EXCEPTIONS.items():
        if (ROOT / module).exists():
            assert {folder_of(name) for name in imports(ROOT / module)} & set(more), module


def test_only_one_door_leads_to_the_kubernetes_package() -> None:
    """Design, packages: only `kube/client/config.py` imports the package `kubernetes`."""
    assert [name_of(path) for path in MODULES if "kubernetes" in packages(path)] == ["kube/client/config.py"]


def test_rules_know_no_client() -> None:
    """Design, packages: rules are pure functions; their modules import no HTTP client, `asyncio` or `threading`."""
    rules = [path for path in MODULES if name_of(path.parent) in ("kube", *RULES.values())]
    impure = {name_of(path) for path in rules if packages(path) & {"aiohttp", "requests", "asyncio", "threading"}}

    assert impure <= {f"{folder}/lookup.py" for folder in RULES.values()}


def test_operations_know_neither_terminal_nor_page() -> None:
    """Design, packages: operations that commands and pages share import neither click, Flask nor rich."""
    operations = [path for path in MODULES if name_of(path.parent) == "console/operations"]
    pages = [path for path in MODULES if name_of(path.parent) == "console/web"]

    assert {name_of(path) for path in operations if packages(path) & {"click", "flask", "rich"}} == set()
    assert {name_of(path) for path in pages if packages(path) & {"click", "rich"}} == set()


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_a_folder_holds_one_thing(room: str) -> None:
    """Design, packages: a package with more than about 15 modules has more than one purpose and must be split."""
    modules = [path for path in (ROOT / room).rglob("*.py") if path.stem != "__init__"]
    counts = Counter(name_of(path.parent) for path in modules)

    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_tests_mirror_the_rooms() -> None:
    """Design, packages: the tests of a package are in a package of the same name below `tests`."""
    modules = [path for room in PRODUCT for path in (ROOT / "tests" / room).rglob("*.py")]
    folders = {path.parent.relative_to(ROOT / "tests") for path in modules}

    assert [folder.as_posix() for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []


@cache
def chain() -> list[dict[str, Any]]:
    """Return all Knative Eventing objects of the manifests."""
    files = [ROOT / "manifests/base/eventing/triggers.yaml", *ROOT.glob("manifests/components/*/eventing.yaml")]
    return [item for file in files for item in yaml.safe_load_all(file.read_text())]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_has_one_name_everywhere(name: str) -> None:
    """Design, packages: file, function, route, Trigger, ServiceAccount and test of a step share its name."""
    source = ast.parse(source_of(name).read_text())
    rights = list(yaml.safe_load_all(rights_of(name).read_text()))
    triggers = [item for item in chain() if item["kind"] == "Trigger"]
    step = name.replace("-", "_")  # the names of Kubernetes objects have hyphens, those of Python functions underscores

    assert any(isinstance(node, ast.FunctionDef) and node.name == step for node in source.body)
    assert FUNCTIONS[name].step.__name__ == source_of(name).stem == step
    assert any(item["kind"] == "ServiceAccount" and item["metadata"]["name"] == name for item in rights)
    assert any(item["spec"]["subscriber"]["ref"]["name"] == name for item in triggers)
    assert mirror_of(name).exists()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_names_what_comes_in_goes_out_and_is_touched(name: str) -> None:
    """Design rule 7: each step's module docstring has the sections In, Out and Touches."""
    documentation = ast.get_docstring(ast.parse(source_of(name).read_text())) or ""

    assert all(word in documentation for word in ("In: ", "Out: ", "Touches: "))


def loaded(code: str, names: Iterable[str]) -> list[str]:
    """Return those of the modules that are imported after a new process has run this code."""
    code = f"{code}; import sys; print(*[name for name in {tuple(names)!r} if name in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()


def test_a_function_starts_without_what_only_others_need() -> None:
    """Importing the functions imports neither a database nor a command line; a cold start waits for imports."""
    assert loaded("import functions.app", HEAVY) == []


@pytest.mark.parametrize("module", ["functions.app", "eventing.local.broker"])
def test_no_certificates_are_read_before_they_are_used(module: str) -> None:
    """Importing these modules makes aiohttp's default SSL contexts lazy."""
    code = f"import {module}, aiohttp.connector as it; print(type(it._SSL_CONTEXT_VERIFIED).__name__)"

    assert loaded(code, ()) == ["LateContext"]


def test_what_only_starts_a_cluster_imports_none_of_it() -> None:
    """Check that `make up` and `make status` start without HTTP libraries and without the functions."""
    code = "import localcluster.__main__; from localcluster.up import down, start, status"

    assert loaded(code, (*HEAVY, "aiohttp", "asyncio", "flask", "localcluster.cluster")) == []
