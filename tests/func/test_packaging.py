"""Tests for the files that func and docker read: func.yaml, pyproject.toml, the Dockerfile and the ignore files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft4Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from function import WORKERS
from localcluster.cluster import LocalCluster
from localcluster.programs import func_module

ROOT = Path(__file__).parents[2]
PACKAGES = ("functions", "eventing", "kube", "console")


@pytest.fixture(scope="module")
def func_yaml() -> dict[str, Any]:
    """Return the content of func.yaml, with the creation time as a string, as in JSON."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "func.yaml").read_text())
    return {**document, "created": document["created"].isoformat()}


def read_list_file(name: str) -> list[str]:
    """Return the lines of a file that contains a list, without comments and blank lines."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return [line for line in lines if line]


def read_pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()


def read_pyproject_list(key: str) -> list[str]:
    """Return a list of strings from pyproject.toml; Python 3.10 has no TOML parser."""
    match = re.search(rf'^{key} = \[((?:"[^"]*"|[^\]"])*)\]', read_pyproject(), re.MULTILINE)
    assert match, key
    return re.findall(r'"([^"]+)"', match[1])


@pytest.fixture(scope="module")
def func_schema() -> dict[str, Any]:
    """Return func's JSON schema for func.yaml."""
    schema: dict[str, Any] = json.loads(func_module.fetch_schema().read_text())
    return schema


def test_func_yaml_matches_schema_of_func(func_yaml: dict[str, Any], func_schema: dict[str, Any]) -> None:
    """Check that func.yaml matches func's schema, because func rejects a file with an unknown field.

    The first lines name the same schema for editors, as in each file that func writes.
    """
    uri = f"https://raw.githubusercontent.com/knative/func/release-{func_module.RELEASE}/schema/func_yaml-schema.json"

    Draft4Validator(func_schema).validate(func_yaml)
    assert (ROOT / "func.yaml").read_text().splitlines()[:2] == [
        f"# $schema: {uri}",
        f"# yaml-language-server: $schema={uri}",
    ]


def test_unknown_field_violates_schema_of_func(func_yaml: dict[str, Any], func_schema: dict[str, Any]) -> None:
    """Check that func's schema rejects unknown fields, so that `test_func_yaml_matches_schema_of_func` can fail."""
    assert not Draft4Validator(func_schema).is_valid({**func_yaml, "deploy": {"option": {}}})


def test_func_yaml_has_settings_that_func_needs(func_yaml: dict[str, Any]) -> None:
    """Check the settings in func.yaml that func needs, but that its schema does not require.

    With `invoke: cloudevent`, the middleware would consume the body and reject requests without an event. `deployer`
    and `namespace` are not set below `deploy`, because func itself writes the values of the last deployment there, and
    `func delete` removes them.
    """
    assert func_yaml["specVersion"] == "0.36.0"
    assert (func_yaml["runtime"], func_yaml["invoke"]) == ("python", "http")
    assert func_yaml["deployer"] == "knative"
    assert func_yaml["deploy"].keys().isdisjoint({"namespace", "image", "deployer"})
    assert func_yaml["deploy"]["options"]["resources"]["limits"]["concurrency"] == WORKERS


def test_func_yaml_has_no_subscriptions(func_yaml: dict[str, Any]) -> None:
    """Check that func.yaml has no subscriptions, for each of which func would create a Trigger without a path."""
    assert "subscriptions" not in func_yaml["deploy"]


def test_lock_file_pins_middleware_version_of_func_scaffolding() -> None:
    """Check that the tests use the version of func-python that func's scaffolding installs."""
    scaffolding = (func_module.fetch_scaffolding() / "pyproject.toml").read_text()
    (pin,) = re.findall(r'"(func-python==[^"]+)"', scaffolding)

    assert pin in [f"{locked.name}{locked.specifier}" for locked in read_lock_file()]


def test_overlay_contains_service_account_and_service_of_func(func_yaml: dict[str, Any]) -> None:
    """Check that an overlay contains the ServiceAccount for `func deploy`, and Triggers that name func's Service."""
    account = yaml.safe_load((ROOT / "manifests/components/account/functions.yaml").read_text())
    patch = (ROOT / "manifests/components/together/kustomization.yaml").read_text()

    assert func_yaml["deploy"]["serviceAccountName"] == account["metadata"]["name"]
    assert func_yaml["namespace"] == account["metadata"]["namespace"]
    assert patch.count(f"value: {func_yaml['name']}}}") == 2


def test_journal_directory_of_func_is_volume(func_yaml: dict[str, Any]) -> None:
    """Check that the journal's directory is a volume, because the root file system may be read-only."""
    environment = {item["name"]: item["value"] for item in func_yaml["run"]["envs"]}

    assert str(Path(environment["JOURNAL"]).parent) in [volume["path"] for volume in func_yaml["run"]["volumes"]]
    assert func_yaml["deploy"]["options"]["scale"]["max"] == 1


def test_distribution_has_name_that_func_scaffolding_imports() -> None:
    """Check that distribution and module have the name `function`, which func's scaffolding installs and imports.

    Only packages that pyproject.toml declares are installed in an image.
    """
    assert re.search(r'^name = "function"', read_pyproject(), re.MULTILINE)
    assert read_pyproject_list("py-modules") == ["function"]
    assert read_pyproject_list("include") == [f"{package}*" for package in PACKAGES]
    assert (ROOT / "function.py").is_file()
    assert re.search(r'^requires-python = ">=3\.10"', read_pyproject(), re.MULTILINE)
    assert not (ROOT / "Procfile").exists()


def test_pyproject_and_requirements_file_list_same_dependencies() -> None:
    """Check that pyproject.toml and requirements.txt list the same dependencies; func reads only pyproject.toml."""
    assert read_pyproject_list("dependencies") == read_list_file("requirements.txt")


PYTHON_VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
REQUIREMENTS = (
    *read_list_file("requirements.txt"),
    *(line for line in read_list_file("requirements-dev.txt") if not line.startswith("-")),
    *read_pyproject_list("dependencies"),
    *read_pyproject_list("tracing"),
    *read_pyproject_list("postgresql"),
    *read_pyproject_list("requires"),
)


def read_lock_file() -> list[Requirement]:
    """Return the packages that requirements-dev.lock pins, each with its environment marker."""
    pins = (ROOT / "requirements-dev.lock").read_text().replace("\\\n", "").splitlines()
    return [Requirement(pin.partition(" --hash=")[0]) for pin in pins]


@pytest.mark.parametrize("python", PYTHON_VERSIONS)
def test_lock_file_satisfies_each_requirement(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    pins = [pin for pin in read_lock_file() if pin.marker is None or pin.marker.evaluate(environment)]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}

    assert len(versions) == len(pins)
    requirements_by_line = [(line, Requirement(line)) for line in sorted({*REQUIREMENTS})]
    names = {line: canonicalize_name(requirement.name) for line, requirement in requirements_by_line}
    unsatisfied = [
        line
        for line, requirement in requirements_by_line
        if not requirement.specifier.contains(versions.get(names[line], "0"))
    ]
    unsatisfied += [line for line, name in names.items() if name not in versions and line not in unsatisfied]
    assert not unsatisfied, f"requirements-dev.lock does not satisfy {unsatisfied} for Python {python}: run `make lock`"


def test_lock_file_has_hashes_and_no_url() -> None:
    """Check that each package has a hash, as pip requires, and that no URL overrides the user's package index."""
    text = (ROOT / "requirements-dev.lock").read_text()
    pins = text.replace("\\\n", "").splitlines()

    assert [pin for pin in pins if not re.search(r" --hash=sha256:[0-9a-f]{64}", pin)] == []
    assert "://" not in text


def test_console_files_are_package_data() -> None:
    """Check that the console's templates, styles, scripts and their licenses are declared as package data."""
    patterns = read_pyproject_list('"console.web"')
    packaged = {path for pattern in patterns for path in (ROOT / "console" / "web").glob(pattern) if path.is_file()}
    existing = {path for path in (ROOT / "console").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}

    assert packaged == existing
    vendored = {path.name.split(".")[0] for path in (ROOT / "console/web/static/vendor").glob("*.min.*")}
    assert vendored == {path.name.split(".")[0] for path in (ROOT / "console/web/static/vendor").glob("*.LICENSE")}


def test_every_dependency_has_comment_about_its_purpose() -> None:
    """Check that each dependency in requirements.txt has a comment that states the dependency's purpose."""
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        assert line.startswith("#") or re.match(r"^\S+ +# .+", line)


def test_funcignore_excludes_requirements_file_but_no_packages() -> None:
    """Check that .funcignore excludes /requirements.txt, which a pack build would install instead of pyproject.toml.

    The file must not exclude files that func's builders need.
    """
    patterns = read_list_file(".funcignore")

    assert "/requirements.txt" in patterns
    for path in (*PACKAGES, "function.py", "pyproject.toml", "README.md", "LICENSE"):
        assert path not in [line.strip("/") for line in patterns]
    assert "/.func/" in read_list_file(".gitignore")


def parse_dockerfile_stage(stage: int = -1) -> list[tuple[str, str]]:
    """Return (instruction, arguments) for each line of one stage of the Dockerfile."""
    instructions = [(line.partition(" ")[0], line.partition(" ")[2]) for line in read_list_file("Dockerfile")]
    starts = [index for index, (instruction, _) in enumerate(instructions) if instruction == "FROM"]
    end = starts[stage + 1] if stage >= 0 else len(instructions)
    return instructions[starts[stage] : end]


def test_dockerfile_has_only_known_instructions() -> None:
    """Check that the Dockerfile has only known instructions; the tests in tests/real build the image."""
    instructions = {line.partition(" ")[0] for line in read_list_file("Dockerfile")}

    assert instructions <= {"FROM", "ARG", "LABEL", "COPY", "RUN", "WORKDIR", "ENV", "USER", "EXPOSE", "CMD"}


def test_image_has_numeric_user_and_no_pip() -> None:
    """Check that the last build stage has a numeric user, as `runAsNonRoot` requires, and contains no pip."""
    assert [instruction for instruction, _ in parse_dockerfile_stage()].count("FROM") == 1
    last = dict(parse_dockerfile_stage())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    assert last["EXPOSE"] == "8080"
    assert "pip" not in " ".join(arguments for _, arguments in parse_dockerfile_stage())


def test_image_contains_only_imported_packages() -> None:
    """Check that the image contains functions, PodSource and console, and that .dockerignore includes these files."""
    copied = [
        arguments.split()
        for instruction, arguments in parse_dockerfile_stage()
        if instruction == "COPY" and "--from" not in arguments
    ]
    allowed = {line[1:] for line in read_list_file(".dockerignore") if line.startswith("!")}

    assert [source for source, _ in copied] == ["functions", "eventing", "kube", "console"]
    assert all(source == target for source, target in copied)
    assert allowed == {"requirements.txt", *(source for source, _ in copied)}
    assert all((ROOT / source).exists() for source in allowed)


def test_image_contains_compiled_modules() -> None:
    """Check that the image contains compiled modules, because the image's user cannot write them at startup."""
    steps = parse_dockerfile_stage()
    copied = [
        arguments.split()[0] for instruction, arguments in steps if instruction == "COPY" and "--from" not in arguments
    ]
    (compiled,) = [arguments for instruction, arguments in steps if instruction == "RUN"]

    compiler = "PYTHONHASHSEED=0 /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash"
    assert compiled.split(" && ")[0] == f"{compiler} {' '.join(copied)}"
    assert [instruction for instruction, _ in steps].index("RUN") > max(
        index for index, (instruction, _) in enumerate(steps) if instruction == "COPY"
    )


def test_image_user_can_read_files_cloned_with_strict_umask(tmp_path: Path) -> None:
    """Check that the image's user can read the files of a repository that was cloned with a strict umask.

    World-readable files must stay unchanged, because the image would store each changed file twice.
    """
    command = dict(parse_dockerfile_stage())["RUN"].split(" && ")[-1]
    modes = {"open": 0o755, "open/a.py": 0o644, "strict": 0o700, "strict/b.py": 0o600, "strict/c.pyc": 0o640}
    for name in modes:
        path = tmp_path / name
        path.touch() if path.suffix else path.mkdir()
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    changed_at = (tmp_path / "open" / "a.py").stat().st_ctime_ns

    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)

    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in modes} == {
        **{"open": 0o755, "open/a.py": 0o644},
        **{"strict": 0o755, "strict/b.py": 0o644, "strict/c.pyc": 0o644},
    }
    assert (tmp_path / "open" / "a.py").stat().st_ctime_ns == changed_at


OMITTED_PACKAGES = ("pydantic", "pydantic_core", "kubernetes.client", "kubernetes.aio.client.api")
OMITTED_MODELS_PREFIX = "kubernetes.aio.client.models."
IMPORT_SCRIPT = """
import importlib, pkgutil, sys
omitted, models, kubeconfig = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
finders = list(sys.meta_path)
class OmittingFinder:
    def find_spec(self, name, path=None, target=None):
        if name in omitted or name.startswith((models, *(f"{package}." for package in omitted))):
            return None
        return next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
sys.meta_path[:] = [OmittingFinder()]
for package in map(importlib.import_module, ("functions", "eventing", "kube", "console")):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith((".__main__", ".conf")):
            importlib.import_module(module.name)
from kube.client.sync_client import SyncClient
print(len(SyncClient(kubeconfig).list("/api/v1/nodes")["items"]), "nodes")
"""


def test_omitted_packages_are_not_imported(installed_cluster: LocalCluster) -> None:
    """Check that all modules can be imported, and can list nodes, without the packages that the image omits."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    for name in (*OMITTED_PACKAGES, OMITTED_MODELS_PREFIX.rstrip(".")):
        package = name.replace("_", "-") if name.startswith("pydantic") else name.replace(".", "/")
        assert package.removeprefix("kubernetes/") in dockerfile

    command = [
        sys.executable,
        "-c",
        IMPORT_SCRIPT,
        ",".join(OMITTED_PACKAGES),
        OMITTED_MODELS_PREFIX,
        str(installed_cluster.kubeconfig),
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"[1-9]\d* nodes\n", result.stdout)


def test_image_command_serves_functions() -> None:
    """Check that the image starts gunicorn with the common settings, on the port in the manifests."""
    command = yaml.safe_load(dict(parse_dockerfile_stage())["CMD"])
    settings: dict[str, Any] = {}
    exec((ROOT / command[2]).read_text(), settings)  # noqa: S102 - This is the product's settings file.

    assert command == ["gunicorn", "-c", "functions/gunicorn.conf.py", "functions.app:create_app()"]
    assert settings["bind"].endswith(":8080")
    assert settings["control_socket_disable"] is True
