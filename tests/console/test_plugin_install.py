"""Tests for the installed wheel `kubectl-maintenance`, in an environment without the product's other packages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from console.cli import COMMANDS
from localcluster.cluster import LocalCluster
from localcluster.plugin.requirements import find_distributions, list_requirements, read_wheel_metadata
from localcluster.plugin.wheel import PROJECT
from tests.console.conftest import ROOT, CreateNode
from tests.console.plugin_environment import PluginEnvironment, create_environment

OMITTED_DISTRIBUTIONS = {
    *("flask", "gunicorn", "a2wsgi", "sqlalchemy", "cryptography", "prometheus-client", "croniter"),
    *("psycopg", "opentelemetry-sdk"),
}
EXTRAS = ("journal", "postgresql", "console")
OWN_PACKAGES = {"console", "eventing", "kube"}
HELP_PACKAGES = {"click"}
"""The libraries that `--help` imports to list the commands."""
STATUS_PACKAGES = {
    *("click", "rich", "yaml", "msgspec", "kubernetes", "aiohttp_retry", "dateutil", "six"),
    *("aiohttp", "aiohappyeyeballs", "aiosignal", "attr", "attrs", "frozenlist", "idna", "multidict", "propcache"),
    *("yarl", "async_timeout", "typing_extensions"),
}
"""The libraries that `status` may import: those of the API client, and rich for its tables."""
UNUSED_MODULES = {
    *("rich.live", "rich.progress", "rich.syntax", "rich.markdown", "rich.traceback", "rich.prompt", "rich.pretty"),
    *("kubernetes.client", "kubernetes.aio.client.api", "kubernetes.aio.client.models"),
    *("aiohttp.web", "aiohttp.test_utils", "multiprocessing", "unittest", "sqlite3", "importlib.metadata"),
}
"""Large libraries that `status` does not need."""
MAX_OWN_MODULES = {"--help": 30, "status": 65}
"""Map from command to maximum number of the product's own modules that it imports."""


@pytest.fixture(scope="module")
def plugin(wheel: Path, served_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> PluginEnvironment:
    """Return an environment in which the wheel is installed without any extra."""
    directory = tmp_path_factory.mktemp("plugin")
    create_environment(directory / "venv", wheel)
    return PluginEnvironment(directory / "venv", tmp_path_factory.mktemp("outside"), served_cluster.kubeconfig)


def read_list(file: Path, key: str) -> list[str]:
    """Return a list of strings from a pyproject.toml; Python 3.10 has no TOML parser."""
    match = re.search(rf'^{key} = \[((?:"[^"]*"|[^\]"])*)\]', file.read_text(), re.MULTILINE)
    assert match, key
    return re.findall(r'"([^"]+)"', match[1])


def test_pyproject_of_command_matches_pyproject_of_product() -> None:
    """Check that version, Python versions and requirements equal those in the product's pyproject.toml."""
    product, project = ROOT / "pyproject.toml", ROOT / PROJECT / "pyproject.toml"
    allowed = {*read_list(product, "dependencies"), *read_list(product, "postgresql")}
    required = {line for key in ("dependencies", *EXTRAS) for line in read_list(project, key)}

    assert {line.casefold() for line in required} <= {line.casefold() for line in allowed}
    for key in ("version", "requires-python", "license"):
        lines = [re.findall(rf'^{key} = "(.*?)"', file.read_text(), re.MULTILINE) for file in (product, project)]
        assert lines[0] == lines[1] != []
    for line in ("kubectl-maintenance = ", "kubectl_complete-maintenance = ", '"console.web" = '):
        assert re.findall(rf"^{re.escape(line)}.*", product.read_text(), re.MULTILINE) == re.findall(
            rf"^{re.escape(line)}.*", project.read_text(), re.MULTILINE
        )


def test_wheel_requires_no_server_library(wheel: Path) -> None:
    """Check that the wheel requires neither server nor database libraries, directly or indirectly."""
    metadata = read_wheel_metadata(wheel)

    assert find_distributions(list_requirements(metadata)) & OMITTED_DISTRIBUTIONS == set()
    assert set(metadata.get_all("Provides-Extra", [])) == set(EXTRAS)
    assert find_distributions(list_requirements(metadata, "journal")) & OMITTED_DISTRIBUTIONS == {"sqlalchemy"}


def test_kubectl_runs_installed_command(plugin: PluginEnvironment, create_node: CreateNode) -> None:
    """Check that kubectl runs the installed command, which reads the cluster and sends a dry run."""
    node = create_node()

    help_result = plugin.run("kubectl", "maintenance", "--help")
    status_result = plugin.run("kubectl", "maintenance", "status", node)
    start_result = plugin.run("kubectl", "maintenance", "start", node, "--dry-run", "-o", "name")
    preview_result = plugin.run("kubectl", "maintenance", "preview", node, "-o", "json")

    assert (help_result.returncode, help_result.stderr) == (0, "")
    assert help_result.stdout.startswith("Usage: kubectl maintenance [OPTIONS] COMMAND")
    assert (status_result.returncode, status_result.stderr) == (0, "")
    assert node in status_result.stdout
    assert start_result.returncode == 0, start_result.stderr
    assert start_result.stdout.startswith("nodemaintenance")
    assert json.loads(preview_result.stdout)["nodes"][0]["node"] == node, preview_result.stderr


def test_kubectl_completes_installed_command(plugin: PluginEnvironment, create_node: CreateNode) -> None:
    """Check that kubectl runs the installed completion program, which reads names from the cluster."""
    node = create_node()

    commands = plugin.run("kubectl", "__complete", "maintenance", "uncor")
    nodes = plugin.run("kubectl", "__complete", "maintenance", "cordon", node)

    assert commands.stdout == "uncordon\tMake nodes schedulable again\n:4\n", commands.stderr
    assert nodes.stdout == f"{node}\n:4\n", nodes.stderr


def test_version_option_prints_version_of_wheel(plugin: PluginEnvironment, wheel: Path) -> None:
    result = plugin.run("kubectl-maintenance", "--version")

    assert result.stdout == f"kubectl maintenance {read_wheel_metadata(wheel)['Version']}\n", result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_needs_no_extra(plugin: PluginEnvironment, name: str) -> None:
    """Check that each command's help works without any extra."""
    result = plugin.run("kubectl-maintenance", name, "--help")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: kubectl maintenance {name} ")


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (("events",), 'install the extra "journal": pipx inject kubectl-maintenance SQLAlchemy'),
        (
            ("console",),
            'install the extra "console": pipx inject kubectl-maintenance flask gunicorn SQLAlchemy',
        ),
    ],
    ids=["journal", "console"],
)
def test_missing_library_is_reported_with_its_extra(
    plugin: PluginEnvironment, args: tuple[str, ...], remedy: str
) -> None:
    """Check that the error of a command that needs an extra names this extra on one line."""
    (plugin.working_dir / "events.db").touch()

    result = plugin.run("kubectl-maintenance", *args, "--journal", "events.db")

    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert result.stderr.endswith(f" is not installed: {remedy}\n")


def test_preview_without_journal_extra_ignores_default_journal(
    plugin: PluginEnvironment, create_node: CreateNode
) -> None:
    """Check that `preview` without the extra for the journal ignores a journal in the working directory."""
    journal = plugin.working_dir / "journal.db"
    journal.touch()

    result = plugin.run("kubectl-maintenance", "preview", create_node())
    journal.unlink()

    assert (result.returncode, result.stderr) == (0, "")


IMPORT_ALL_CODE = """
import console, importlib, pkgutil
for module in pkgutil.walk_packages(console.__path__, "console."):
    importlib.import_module(module.name)
print("imported")
"""


@pytest.mark.slow
def test_extras_suffice_for_every_module(wheel: Path, served_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that with all extras, each module of the command and its web console can be imported."""
    create_environment(tmp_path / "venv", wheel, ("journal", "console"))
    environment = PluginEnvironment(tmp_path / "venv", tmp_path, served_cluster.kubeconfig)

    result = environment.run(str(environment.programs / "python"), "-c", IMPORT_ALL_CODE)

    assert result.stdout == "imported\n", result.stderr


def list_imports(plugin: PluginEnvironment, *args: str) -> set[str]:
    """Return the modules that the installed command imports, as reported by Python's `-X importtime`."""
    program = str(plugin.programs / "kubectl-maintenance")
    result = plugin.run(str(plugin.programs / "python"), "-X", "importtime", program, *args)
    assert result.returncode == 0, result.stderr
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", result.stderr, re.MULTILINE))


def list_libraries(plugin: PluginEnvironment, modules: set[str]) -> set[str]:
    """Return those of these modules that are installed packages; Python also reports failed imports."""
    (site_packages,) = plugin.directory.glob("lib/python3*/site-packages")
    installed = {path.stem for path in site_packages.iterdir()}
    return ({name.partition(".")[0] for name in modules} & installed) - OWN_PACKAGES


def test_list_of_commands_imports_only_click(plugin: PluginEnvironment) -> None:
    """Check the imports of `--help`, which take most of the command's startup time."""
    modules = list_imports(plugin, "--help")
    own = {name for name in modules if name.partition(".")[0] in OWN_PACKAGES}

    assert list_libraries(plugin, modules) == HELP_PACKAGES
    assert modules & {"asyncio", "importlib.metadata", "email", "http.client", "urllib.request"} == set()
    assert len(own) <= MAX_OWN_MODULES["--help"], sorted(own)


def test_status_imports_only_required_modules(plugin: PluginEnvironment) -> None:
    """Check the imports of `status`, which take most of the time until its first request."""
    modules = list_imports(plugin, "status")
    own = {name for name in modules if name.partition(".")[0] in OWN_PACKAGES}

    assert list_libraries(plugin, modules) <= STATUS_PACKAGES
    assert modules & UNUSED_MODULES == set()
    assert len(own) <= MAX_OWN_MODULES["status"], sorted(own)
