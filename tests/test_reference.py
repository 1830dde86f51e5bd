"""Tests that docs/reference.md matches the code, and that the docs name every environment variable."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from eventing import events
from eventing.events import shorten_type
from functions.app import FUNCTIONS
from tests.proofs import proves
from tests.reference import PAGE, render_page
from tests.sources import ROOT, parse_source

SHIPPED_PACKAGES = ("functions", "eventing", "kube", "console")
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
VARIABLE_NAME_PATTERN = re.compile(r"[A-Z][A-Z0-9_]+")
VARIABLES_BY_LIBRARY_FUNCTION = {
    "create_default_context": ("SSL_CERT_FILE", "SSL_CERT_DIR"),
    "load_default_certs": ("SSL_CERT_FILE", "SSL_CERT_DIR"),
    "getproxies": ("HTTPS_PROXY",),
    "proxy_bypass": ("NO_PROXY",),
}
"""The environment variables that functions of Python's standard library read for their callers."""
DOCUMENTED_VARIABLE_PATTERN = re.compile(rf"`({VARIABLE_NAME_PATTERN.pattern})`")


def test_reference_page_is_up_to_date() -> None:
    """Check that docs/reference.md is up to date; `make reference` updates it."""
    assert PAGE.read_text() == render_page()


@proves("X-4")
def test_reference_page_names_emitter_of_every_event_type() -> None:
    """Check that the page names an emitter of every event type, so that no type is declared without being emitted."""
    rows = [line.split(" | ") for line in render_page().splitlines()]
    emitters = {cells[0]: cells[2] for cells in rows if len(cells) == 4}

    assert all(emitters[f"| `{shorten_type(event_type)}`"] for event_type in events.TYPE_DESCRIPTIONS)


def test_reference_page_lists_every_consumed_event_type() -> None:
    page = render_page()

    for function in FUNCTIONS.values():
        for event_type in function.consumes:
            assert f"\n| `{shorten_type(event_type)}` | " in page


def is_environment_mapping(node: ast.AST) -> bool:
    """Return whether the node is `os.environ`, `os.getenv` or a mapping named `environment`."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("environ", "getenv")
    return isinstance(node, ast.Name) and node.id == "environment"


def list_environment_reads(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the syntax nodes that use the environment, and those that define the console's options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "envvar":
            yield node.value
        elif not isinstance(node, DEFINITIONS) and any(is_environment_mapping(child) for child in ast.walk(node)):
            yield node


def list_strings(node: ast.AST) -> set[str]:
    return {child.value for child in ast.walk(node) if isinstance(child, ast.Constant) and isinstance(child.value, str)}


def list_names(node: ast.AST) -> set[str]:
    """Return the names of the variables and attributes in a syntax tree."""
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    return names | {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}


def list_environment_variables() -> set[str]:
    """Return the variables that the shipped packages read: as strings, as constants, or through a library function."""
    paths = [path for package in SHIPPED_PACKAGES for path in (ROOT / package).rglob("*.py")]
    trees = [parse_source(path) for path in paths]
    strings_by_constant: dict[str, set[str]] = {}
    for assignment in (node for tree in trees for node in tree.body if isinstance(node, ast.Assign)):
        for name in (name for target in assignment.targets for name in list_names(target)):
            strings_by_constant.setdefault(name, set()).update(list_strings(assignment.value))
    strings: set[str] = set()
    for read in (read for tree in trees for read in list_environment_reads(tree)):
        strings.update(list_strings(read), *(strings_by_constant.get(name, ()) for name in list_names(read)))
    called_names = set().union(*map(list_names, trees))
    strings.update(*(names for function, names in VARIABLES_BY_LIBRARY_FUNCTION.items() if function in called_names))
    return {string for string in strings if VARIABLE_NAME_PATTERN.fullmatch(string)}


def test_every_environment_variable_is_documented() -> None:
    """Check that docs/configuration.md or docs/console.md names every environment variable that the packages read.

    The first assertion checks that the scan finds each kind of read. A variable can be read in a function, at import,
    by a constant, or through a helper. It can also be read in a loop over names, in an option of a command, or by a
    library function.
    """
    pages = [(ROOT / "docs" / name).read_text() for name in ("configuration.md", "console.md")]
    documented = {name for page in pages for name in DOCUMENTED_VARIABLE_PATTERN.findall(page)}
    variables = list_environment_variables()

    assert variables >= {
        *("PORT", "LEASE_NAMESPACE", "SIGNING_KEY"),
        *("MIGRATIONS_PER_NODE", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "CONSOLE_TLS", "SSL_CERT_FILE"),
    }
    assert variables - documented == set()
