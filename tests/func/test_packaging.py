"""The files that func and docker read: func.yaml, pyproject.toml, the Dockerfile and the ignore lists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from localcluster.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
ROOMS = ("functions", "eventing", "kube", "console")
KNOWN = {
    "": {
        *("specVersion", "name", "domain", "runtime", "registry", "registryInsecure", "image", "namespace", "deployer"),
        *("created", "invoke", "build", "run", "deploy"),
    },
    "build": {
        "git",
        "builderImages",
        "buildpacks",
        "builder",
        "buildEnvs",
        "pvcSize",
        "remoteStorageClass",
        "baseImage",
    },
    "run": {"volumes", "envs", "startTimeout"},
    "deploy": {
        *("namespace", "image", "annotations", "options", "labels", "healthEndpoints", "serviceAccountName"),
        *("imagePullSecret", "deployer", "subscriptions"),
    },
}
"""Fields of func's published schema; func rejects a file with any other field."""


@pytest.fixture(scope="module")
def func() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "func.yaml").read_text())
    return document


def lines(name: str) -> list[str]:
    """Return the lines of a list file, without comments and blank lines."""
    stripped = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return [line for line in stripped if line]


def project() -> str:
    return (ROOT / "pyproject.toml").read_text()


def listed(key: str) -> list[str]:
    """Return a list of strings in pyproject.toml; Python 3.10 has no TOML parser."""
    found = re.search(rf'^{key} = \[((?:"[^"]*"|[^\]"])*)\]', project(), re.MULTILINE)
    assert found, key
    return re.findall(r'"([^"]+)"', found[1])


@pytest.mark.parametrize("place", KNOWN)
def test_func_yaml_says_nothing_that_func_does_not_know(func: dict[str, Any], place: str) -> None:
    """Check that func.yaml has only known fields, since func rejects the whole file otherwise."""
    fields = func if place == "" else func[place]

    assert fields.keys() <= KNOWN[place]


def test_func_yaml_says_what_func_must_know(func: dict[str, Any]) -> None:
    """Check that func.yaml has the required fields and a valid builder; a file must not set `host`."""
    assert func["specVersion"] == "0.36.0"
    assert func["created"]
    assert (func["runtime"], func["invoke"]) == ("python", "http")
    assert func["build"]["builder"] in ("pack", "s2i")


def test_func_deploys_under_an_account_and_name_that_an_overlay_installs(func: dict[str, Any]) -> None:
    """Check that an overlay installs the account that `func deploy` needs, and that its Triggers name the Service."""
    account = yaml.safe_load((ROOT / "manifests/components/account/functions.yaml").read_text())
    patch = (ROOT / "manifests/components/together/kustomization.yaml").read_text()

    assert func["deploy"]["serviceAccountName"] == account["metadata"]["name"]
    assert func["deploy"]["namespace"] == account["metadata"]["namespace"]
    assert patch.count(f"value: {func['name']}}}") == 2


def test_the_journal_is_where_a_volume_is(func: dict[str, Any]) -> None:
    """Check that the journal's directory is a volume, because the root file system may be read-only."""
    environment = {item["name"]: item["value"] for item in func["run"]["envs"]}

    assert str(Path(environment["JOURNAL"]).parent) in [volume["path"] for volume in func["run"]["volumes"]]
    assert func["deploy"]["options"]["scale"]["max"] == 1


def test_the_distribution_is_named_as_the_scaffolding_wants_it() -> None:
    """Check that the distribution and its module are named `function`, which the scaffolding installs and imports.

    Only declared packages are installed in an image.
    """
    assert re.search(r'^name = "function"', project(), re.MULTILINE)
    assert listed("py-modules") == ["function"]
    assert listed("include") == [f"{room}*" for room in ROOMS]
    assert (ROOT / "function.py").is_file()
    assert re.search(r'^requires-python = ">=3\.10"', project(), re.MULTILINE)
    assert not (ROOT / "Procfile").exists()


def test_both_lists_of_dependencies_say_the_same() -> None:
    """Check that both lists are equal: func builds without requirements.txt, which has the comments."""
    assert listed("dependencies") == lines("requirements.txt")


PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
REQUIRED = (
    *lines("requirements.txt"),
    *(line for line in lines("requirements-dev.txt") if not line.startswith("-")),
    *listed("dependencies"),
    *listed("tracing"),
    *listed("postgresql"),
    *listed("requires"),
)


def locked() -> list[Requirement]:
    """Return the packages that requirements-dev.lock pins, each with its marker."""
    pins = (ROOT / "requirements-dev.lock").read_text().replace("\\\n", "").splitlines()
    return [Requirement(pin.partition(" --hash=")[0]) for pin in pins]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_file_pins_a_version_that_each_requirement_allows(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    pins = [pin for pin in locked() if pin.marker is None or pin.marker.evaluate(environment)]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}

    assert len(versions) == len(pins)
    required = [(line, Requirement(line)) for line in sorted({*REQUIRED})]
    names = {line: canonicalize_name(each.name) for line, each in required}
    unmet = [line for line, each in required if not each.specifier.contains(versions.get(names[line], "0"))]
    unmet += [line for line, name in names.items() if name not in versions and line not in unmet]
    assert not unmet, f"requirements-dev.lock does not satisfy {unmet} for Python {python}: run `make lock`"


def test_the_lock_file_has_a_hash_for_each_package_and_no_address() -> None:
    """Check that each package has a hash, as pip requires, and that no URL overrides the user's package index."""
    text = (ROOT / "requirements-dev.lock").read_text()
    pins = text.replace("\\\n", "").splitlines()

    assert [pin for pin in pins if not re.search(r" --hash=sha256:[0-9a-f]{64}", pin)] == []
    assert "://" not in text


def test_what_the_console_serves_is_installed_with_it() -> None:
    """Check that the console's templates, styles and scripts are declared as package data, with their licenses."""
    patterns = listed('"console.web"')
    shipped = {path for pattern in patterns for path in (ROOT / "console" / "web").glob(pattern) if path.is_file()}
    there = {path for path in (ROOT / "console").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}

    assert shipped == there
    kept = {path.name.split(".")[0] for path in (ROOT / "console/web/static/vendor").glob("*.min.*")}
    assert kept == {path.name.split(".")[0] for path in (ROOT / "console/web/static/vendor").glob("*.LICENSE")}


def test_every_dependency_says_what_it_is_for() -> None:
    """Design: each dependency has a comment that states its purpose."""
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        assert line.startswith("#") or re.match(r"^\S+ +# .+", line)


def test_func_leaves_out_what_would_mislead_its_builders_and_keeps_what_they_need() -> None:
    """Check that .funcignore excludes /requirements.txt, which a pack build would install as the whole project.

    It does not exclude files that the builders need.
    """
    left_out = lines(".funcignore")

    assert "/requirements.txt" in left_out
    for needed in (*ROOMS, "function.py", "pyproject.toml", "README.md", "LICENSE"):
        assert needed not in [line.strip("/") for line in left_out]
    assert "/.func/" in lines(".gitignore")


def instructions(stage: int = -1) -> list[tuple[str, str]]:
    """Return (instruction, rest of its line) for one stage of the Dockerfile."""
    found = [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines("Dockerfile")]
    starts = [index for index, (word, _) in enumerate(found) if word == "FROM"]
    end = starts[stage + 1] if stage >= 0 else len(found)
    return found[starts[stage] : end]


def test_the_dockerfile_is_of_known_instructions() -> None:
    """Check that the Dockerfile has only known instructions; the tests in tests/real build the image."""
    words = {line.partition(" ")[0] for line in lines("Dockerfile")}

    assert words <= {"FROM", "ARG", "LABEL", "COPY", "RUN", "WORKDIR", "ENV", "USER", "EXPOSE", "CMD"}


def test_the_image_is_built_in_stages_and_runs_as_a_number() -> None:
    """Check that the last stage has a numeric user, as `runAsNonRoot` requires, and neither pip nor its cache."""
    assert [word for word, _ in instructions()].count("FROM") == 1
    last = dict(instructions())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    assert last["EXPOSE"] == "8080"
    assert "pip" not in " ".join(rest for _, rest in instructions())


def test_the_image_holds_what_its_commands_import_and_nothing_else() -> None:
    """Check that the image contains functions, PodSource and console, and that .dockerignore admits the same files."""
    copied = [rest.split() for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    allowed = {line[1:] for line in lines(".dockerignore") if line.startswith("!")}

    assert [source for source, _ in copied] == ["functions", "eventing", "kube", "console"]
    assert all(source == target for source, target in copied)
    assert allowed == {"requirements.txt", *(source for source, _ in copied)}
    assert all((ROOT / source).exists() for source in allowed)


def test_the_image_holds_its_sources_compiled() -> None:
    """Check that the image contains compiled modules: its user cannot write them, so each start would compile again."""
    steps = instructions()
    copied = [rest.split()[0] for word, rest in steps if word == "COPY" and "--from" not in rest]
    (compiled,) = [rest for word, rest in steps if word == "RUN"]

    compiler = "PYTHONHASHSEED=0 /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash"
    assert compiled.split(" && ")[0] == f"{compiler} {' '.join(copied)}"
    assert [word for word, _ in steps].index("RUN") > max(n for n, (word, _) in enumerate(steps) if word == "COPY")


def test_the_image_s_user_may_read_what_was_cloned_under_a_strict_umask(tmp_path: Path) -> None:
    """Check that the image's user can read files that were cloned with a strict umask.

    World-readable files stay unchanged, because a change would store them in the image twice.
    """
    last = dict(instructions())["RUN"].split(" && ")[-1]
    modes = {"open": 0o755, "open/a.py": 0o644, "strict": 0o700, "strict/b.py": 0o600, "strict/c.pyc": 0o640}
    for name in modes:
        place = tmp_path / name
        place.touch() if place.suffix else place.mkdir()
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    written = (tmp_path / "open" / "a.py").stat().st_ctime_ns

    subprocess.run(["sh", "-c", last], cwd=tmp_path, check=True)

    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in modes} == {
        **{"open": 0o755, "open/a.py": 0o644},
        **{"strict": 0o755, "strict/b.py": 0o644, "strict/c.pyc": 0o644},
    }
    assert (tmp_path / "open" / "a.py").stat().st_ctime_ns == written


LEFT_OUT = ("pydantic", "pydantic_core", "kubernetes.client", "kubernetes.aio.client.api")
MODELS = "kubernetes.aio.client.models."
WITHOUT = """
import importlib, pkgutil, sys
left_out, models, kubeconfig = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
finders = list(sys.meta_path)
class Without:
    def find_spec(self, name, path=None, target=None):
        if name in left_out or name.startswith((models, *(f"{each}." for each in left_out))):
            return None
        return next(filter(None, (each.find_spec(name, path, target) for each in finders)), None)
sys.meta_path[:] = [Without()]
for room in map(importlib.import_module, ("functions", "eventing", "kube", "console")):
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        if not module.name.endswith((".__main__", ".conf")):
            importlib.import_module(module.name)
from kube.client.sync_client import Cluster
print(len(Cluster(kubeconfig).list("/api/v1/nodes")["items"]), "nodes")
"""


def test_what_the_image_leaves_out_is_imported_by_nobody(installed: LocalCluster) -> None:
    """Check that every module can be imported, and the API server reached, without the packages the image omits."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    for name in (*LEFT_OUT, MODELS.rstrip(".")):
        package = name.replace("_", "-") if name.startswith("pydantic") else name.replace(".", "/")
        assert package.removeprefix("kubernetes/") in dockerfile

    command = [sys.executable, "-c", WITHOUT, ",".join(LEFT_OUT), MODELS, str(installed.kubeconfig)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[1-9]\d* nodes\n", done.stdout)


def test_the_images_command_is_the_one_that_serves_the_functions() -> None:
    """Check that the image starts gunicorn with the common settings, on the port that the manifests use."""
    command = yaml.safe_load(dict(instructions())["CMD"])
    settings: dict[str, Any] = {}
    exec((ROOT / command[2]).read_text(), settings)  # noqa: S102 - our own settings file

    assert command == ["gunicorn", "-c", "functions/gunicorn.conf.py", "functions.app:create_app()"]
    assert settings["bind"].endswith(":8080")
    assert settings["control_socket_disable"] is True
