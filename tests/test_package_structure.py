"""Tests for the package structure: allowed imports, and the same name for everything that belongs to a function."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.app import FUNCTIONS
from tests.sources import ROOT, get_rbac_path, get_source_path, get_test_path, parse_source

COMPONENTS = (
    *("maintenance", "mutex", "virtualization", "certificates", "admission"),
    *("cpu_labels", "node_conditions", "notifications"),
)
"""`maintenance` and the optional components, each with a package in `functions` and a package of rules in `kube`."""
RULES_PACKAGES = {component: f"kube/{component}" for component in COMPONENTS}
"""Map from component to the package with the component's rules."""
EVENTING_PACKAGES = ("eventing", "eventing/local", "eventing/podsource", "eventing/journal", "eventing/replay")
KUBE_PACKAGES = ("kube", "kube/client", "kube/evictions", *RULES_PACKAGES.values())
ALLOWED_IMPORTS = {
    "kube": ("kube",),
    "kube/client": ("kube", "kube/client"),
    "kube/evictions": ("kube", "kube/client", "kube/evictions"),
    **{folder: ("kube", folder) for folder in RULES_PACKAGES.values()},
    "eventing": ("eventing",),
    **{folder: ("eventing", folder, *KUBE_PACKAGES) for folder in EVENTING_PACKAGES[1:]},
    "eventing/replay": ("eventing", "eventing/journal", "eventing/replay", *KUBE_PACKAGES),
    "functions": ("functions", "eventing", "eventing/journal", "kube", "kube/client"),
    "functions/serving": ("functions", "functions/serving", "eventing", "eventing/journal", "kube", "kube/client"),
    **{
        f"functions/{component}": ("functions", f"functions/{component}", "eventing", "kube", "kube/client", folder)
        for component, folder in RULES_PACKAGES.items()
    },
    "functions/maintenance": (
        *("functions", "functions/maintenance", "eventing"),
        *("kube", "kube/client", "kube/evictions", "kube/maintenance"),
    ),
    # Admission validates NodeMaintenances with the rules that apply to them after their creation.
    "kube/admission": ("kube", "kube/evictions", "kube/maintenance", "kube/admission"),
    "functions/admission": (
        *("functions", "functions/admission", "eventing"),
        *("kube", "kube/client", "kube/maintenance", "kube/admission"),
    ),
    # The conditions of a node describe its NodeMaintenance.
    "kube/node_conditions": ("kube", "kube/maintenance", "kube/node_conditions"),
    "functions/node_conditions": (
        *("functions", "functions/node_conditions", "eventing"),
        *("kube", "kube/client", "kube/maintenance", "kube/node_conditions"),
    ),
    # Notifications report what blocks the drain of a NodeMaintenance.
    "kube/notifications": ("kube", "kube/maintenance", "kube/notifications"),
    "functions/notifications": (
        *("functions", "functions/notifications", "eventing"),
        *("kube", "kube/client", "kube/maintenance", "kube/notifications"),
    ),
    "console": ("console", "console/commands", "console/operations", "console/terminal"),
    "console/commands": ("console/terminal", "console/operations", *EVENTING_PACKAGES, *KUBE_PACKAGES),
    "console/terminal": ("console/terminal", "console/operations", *EVENTING_PACKAGES, *KUBE_PACKAGES),
    "console/web": ("console/web", "console/operations", *EVENTING_PACKAGES, *KUBE_PACKAGES),
    "console/operations": ("console/operations", *EVENTING_PACKAGES, *KUBE_PACKAGES),
}
"""Map from package to the packages whose modules it may import."""
IMPORT_EXCEPTIONS = {
    # `lookup` is the only module of a component's rules that reads from the API server.
    **{f"{folder}/lookup.py": ("kube/client",) for folder in RULES_PACKAGES.values()},
    # The release of a node depends on its NodeMaintenances, which are found with the same rules as in a drain.
    "kube/mutex/lookup.py": ("kube/client", "kube/maintenance"),
    "kube/virtualization/lookup.py": (
        "kube/client",
        "kube/maintenance",
    ),  # A drain moves a node's virt-launcher pods.
    "functions/admission/__main__.py": ("functions/serving",),  # This module serves the webhook.
    "functions/app.py": (
        "functions/serving",
        "kube/evictions",
        *(f"functions/{component}" for component in COMPONENTS),
    ),  # This module lists all functions.
    "console/commands/console.py": ("console/web",),  # This module serves the web console.
    "console/operations/replay.py": (
        "functions",
        "functions/serving",
    ),  # A replay can run functions in its own process.
}
"""Map from module to packages that it may import in addition to those allowed for its package, with the reason."""
PACKAGES = ("functions", "eventing", "kube", "console", "localcluster", "bench", "chaos", "release", "tests")
PRODUCT_PACKAGES, TOOL_PACKAGES = PACKAGES[:4], PACKAGES[4:8]
MODULES = [path for package in PRODUCT_PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
TOOL_MODULES = [path for package in TOOL_PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
TESTS_MODULE_PATTERN = re.compile(r"tests(\.\w+)*")
"""Pattern of a module name in `tests`, as written in an import, in `importlib.import_module` or after `python -m`."""
LAZY_IMPORTS = (
    *("sqlalchemy", "rich", "croniter", "opentelemetry"),
    *("yaml", "requests", "urllib3", "charset_normalizer", "cryptography"),
    *("kubernetes.client.configuration", "kubernetes.aio.client.models", "pydantic", "oauthlib", "websocket"),
)
"""Libraries, and parts of libraries, that a function never imports, or imports only after its start."""


def get_relative_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def list_imports(path: Path) -> Iterator[str]:
    """Yield the dotted names of all imports of the module, including those within functions."""
    yield from list_imports_of(parse_source(path))


def list_imports_of(source: ast.Module) -> Iterator[str]:
    """Yield the dotted names of all imports in the source, including those within functions."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def list_packages(path: Path) -> set[str]:
    """Return the top-level packages that the module imports."""
    return {name.split(".")[0] for name in list_imports(path)}


@cache
def find_package(imported: str) -> str:
    """Return the package of this repository that contains the imported module or the imported name."""
    parts = imported.split(".")
    for length in range(len(parts), 0, -1):
        if ROOT.joinpath(*parts[:length]).with_suffix(".py").is_file():
            return "/".join(parts[: length - 1])
    return "/".join(part for part in parts if ROOT.joinpath(*parts[: parts.index(part) + 1]).is_dir())


def list_forbidden_imports(path: Path) -> set[str]:
    """Return the packages that a module imports although no rule allows the import."""
    imported = {find_package(name) for name in list_imports(path) if name.split(".")[0] in PACKAGES}
    allowed = ALLOWED_IMPORTS[get_relative_name(path.parent)] + IMPORT_EXCEPTIONS.get(get_relative_name(path), ())
    return imported.difference(allowed)


def test_modules_import_only_allowed_packages() -> None:
    """Check that each module imports only packages that `ALLOWED_IMPORTS` or `IMPORT_EXCEPTIONS` allows."""
    forbidden_imports = {get_relative_name(path): list_forbidden_imports(path) for path in MODULES}

    assert {module: packages for module, packages in forbidden_imports.items() if packages} == {}


def test_import_rules_match_existing_packages() -> None:
    """Check that every package has allowed imports, and that every exception is used by its module."""
    assert {get_relative_name(path.parent) for path in MODULES} <= ALLOWED_IMPORTS.keys()
    for module, packages in IMPORT_EXCEPTIONS.items():
        if (ROOT / module).exists():
            assert {find_package(name) for name in list_imports(ROOT / module)} & set(packages), module


def uses_tests(source: ast.Module) -> bool:
    """Return whether the source imports a module of `tests`, or contains the name of such a module in a string."""
    strings = (str(node.value) for node in ast.walk(source) if isinstance(node, ast.Constant))
    return any(TESTS_MODULE_PATTERN.fullmatch(name) for name in (*list_imports_of(source), *strings))


@pytest.mark.parametrize(
    "line",
    [
        "import tests.workload",
        "from tests import workload",
        "from tests.workload import build_pod",
        "def start(): from tests.workload import build_pod",
        'importlib.import_module("tests.workload")',
        'subprocess.run([sys.executable, "-m", "tests.workload"])',
    ],
)
def test_each_use_of_tests_is_found(line: str) -> None:
    """Check that `uses_tests` finds imports at any level, imports by name, and commands."""
    assert uses_tests(ast.parse(line))


def test_tools_do_not_use_tests() -> None:
    """Check that the development tools neither import `tests` nor run its modules; `tests` may use the tools."""
    assert [get_relative_name(path) for path in TOOL_MODULES if uses_tests(parse_source(path))] == []


def test_only_client_config_imports_kubernetes() -> None:
    """Check that only `kube/client/config.py` imports the package `kubernetes`."""
    assert [get_relative_name(path) for path in MODULES if "kubernetes" in list_packages(path)] == [
        "kube/client/config.py"
    ]


def test_rule_modules_import_no_client() -> None:
    """Check that the rule modules import no HTTP client, `asyncio` or `threading`, so that the rules can be pure."""
    rules = [path for path in MODULES if get_relative_name(path.parent) in ("kube", *RULES_PACKAGES.values())]
    rules.append(ROOT / "kube/evictions/planner.py")
    impure_modules = {
        get_relative_name(path)
        for path in rules
        if list_packages(path) & {"aiohttp", "requests", "asyncio", "threading"}
    }

    assert impure_modules <= {f"{folder}/lookup.py" for folder in RULES_PACKAGES.values()}


def test_operations_import_neither_terminal_nor_web_libraries() -> None:
    """Check that the operations that commands and pages share import neither click, Flask nor rich."""
    operations = [path for path in MODULES if get_relative_name(path.parent) == "console/operations"]
    pages = [path for path in MODULES if get_relative_name(path.parent) == "console/web"]

    assert {get_relative_name(path) for path in operations if list_packages(path) & {"click", "flask", "rich"}} == set()
    assert {get_relative_name(path) for path in pages if list_packages(path) & {"click", "rich"}} == set()


def test_test_packages_mirror_product_packages() -> None:
    """Check that the tests for a package are in a package of the same name below `tests`."""
    modules = [path for package in PRODUCT_PACKAGES for path in (ROOT / "tests" / package).rglob("*.py")]
    folders = {path.parent.relative_to(ROOT / "tests") for path in modules}

    assert [folder.as_posix() for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []


@cache
def load_eventing_manifests() -> list[dict[str, Any]]:
    """Return all Knative Eventing objects in the manifests."""
    files = [ROOT / "manifests/base/eventing/triggers.yaml", *ROOT.glob("manifests/components/*/eventing.yaml")]
    return [manifest for file in files for manifest in yaml.safe_load_all(file.read_text())]


def list_places_without_name(name: str) -> list[str]:
    """Return the places that do not have the function's name."""
    source = parse_source(get_source_path(name))
    rbac_objects = list(yaml.safe_load_all(get_rbac_path(name).read_text()))
    triggers = [manifest for manifest in load_eventing_manifests() if manifest["kind"] == "Trigger"]
    step = name.replace("-", "_")  # Names of Kubernetes objects contain hyphens instead of underscores.
    has_name = {
        "function in its module": any(isinstance(node, ast.FunctionDef) and node.name == step for node in source.body),
        "module": get_source_path(name).stem == step,
        "route": FUNCTIONS[name].step.__name__ == step,
        "ServiceAccount": any(
            rbac["kind"] == "ServiceAccount" and rbac["metadata"]["name"] == name for rbac in rbac_objects
        ),
        "Trigger": any(trigger["spec"]["subscriber"]["ref"]["name"] == name for trigger in triggers),
        "test module": get_test_path(name).exists(),
    }
    return [place for place, is_named in has_name.items() if not is_named]


def test_function_has_same_name_everywhere() -> None:
    """Check that a function's module, route, Trigger, ServiceAccount and test module have the function's name."""
    faults = {name: list_places_without_name(name) for name in FUNCTIONS}

    assert faults
    assert {name: places for name, places in faults.items() if places} == {}


def test_function_docstring_has_in_out_and_touches() -> None:
    """Check that each function's module docstring has the sections In, Out and Touches."""
    docstrings = {name: ast.get_docstring(parse_source(get_source_path(name))) or "" for name in FUNCTIONS}
    missing_sections = {
        (name, section)
        for name, docstring in docstrings.items()
        for section in ("In: ", "Out: ", "Touches: ")
        if section not in docstring
    }

    assert docstrings
    assert missing_sections == set()


def list_loaded_modules(code: str, names: Iterable[str]) -> list[str]:
    """Return which of these modules a new process has imported after it has run this code."""
    code = f"{code}; import sys; print(*[name for name in {tuple(names)!r} if name in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()


def test_functions_start_without_importing_lazy_imports() -> None:
    """Check that importing the functions imports none of `LAZY_IMPORTS`, because imports delay a cold start."""
    assert list_loaded_modules("import functions.app", LAZY_IMPORTS) == []


def test_make_up_and_status_import_no_heavy_modules() -> None:
    """Check that `make up` and `make status` import neither HTTP libraries nor the functions."""
    code = "import localcluster.__main__; from localcluster.up import down, start, status"

    assert list_loaded_modules(code, (*LAZY_IMPORTS, "aiohttp", "asyncio", "flask", "localcluster.cluster")) == []
