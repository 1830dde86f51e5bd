"""The make targets for an existing cluster: `deploy`, `cluster-functest`, and those of the container image."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localcluster.deploy import apply, preflight
from localcluster.errors import LocalClusterError
from localcluster.processes import reserve_port
from localcluster.programs import build
from localcluster.up import state_directory
from tests.localcluster.commands import ROOT, run_kubectl
from tests.proofs import proves

IMAGE_ARGUMENTS = ("container-build-and-push-community", "IMAGE=registry.example/nodemaintenance", "VERSION=1.2.3")


def run_make(target: str, *variables: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a make target in the repository."""
    tools = os.pathsep.join([str(build.ensure_programs()), os.environ["PATH"]])
    return run_make_in(ROOT, target, *variables, **{"PATH": tools, **environment})


def run_make_in(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make in a directory."""
    command, variables = ["make", "--no-print-directory", *arguments], {**os.environ, **environment}
    return subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, check=False, timeout=120
    )


def build_environment(directory: Path) -> dict[str, str]:
    """Return the environment that selects the directory's cluster as the current one."""
    return {"KUBECONFIG": str(directory / state_directory.KUBECONFIG_FILE)}


def list_install_objects(directory: Path) -> str:
    """Return name and resourceVersion of all objects that an install creates."""
    kinds = "crd,namespace,clusterrole,clusterrolebinding"
    kinds_inside = "serviceaccount,role,rolebinding,service,deployment,configmap,networkpolicy"
    version = "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}"
    return run_kubectl(directory, "get", kinds, version) + run_kubectl(directory, "get", kinds_inside, "-A", version)


@pytest.mark.slow
@proves("NMO-26a")
def test_deploy_applies_nothing_without_knative(running_state_dir: Path) -> None:
    """Check that `deploy` names every missing kind and applies nothing if Knative is not installed."""
    before = list_install_objects(running_state_dir)

    result = run_make("deploy", **build_environment(running_state_dir))

    assert result.returncode != 0
    assert (
        "error: nothing was applied: the cluster does not serve Broker (eventing.knative.dev/v1), "
        "Trigger (eventing.knative.dev/v1)," in result.stderr
    )
    assert "Service (serving.knative.dev/v1)" in result.stderr
    assert ": install Knative first" in result.stderr
    assert list_install_objects(running_state_dir) == before


@pytest.mark.slow
@proves("NMO-26a")
def test_deploy_applies_an_overlay_whose_kinds_are_served(running_state_dir: Path, tmp_path: Path) -> None:
    """Check that `deploy` applies the overlay of another directory, and that a second run changes nothing.

    Its objects need no namespace.
    """
    overlay = tmp_path / "my overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [map.yaml, service.yaml]\n"
    )
    (overlay / "map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine, namespace: default}\n")
    (overlay / "service.yaml").write_text(
        "apiVersion: v1\nkind: Service\nmetadata: {name: mine}\nspec: {ports: [{port: 80}]}\n"
    )

    first, second = (run_make("deploy", f"OVERLAY={overlay}", **build_environment(running_state_dir)) for _ in range(2))

    assert (first.returncode, first.stdout) == (0, "configmap/mine created\nservice/mine created\n"), first.stderr
    assert (second.returncode, second.stdout) == (0, "configmap/mine unchanged\nservice/mine unchanged\n")


@proves("NMO-26a")
def test_deploy_reports_unreachable_api_server(tmp_path: Path) -> None:
    """Check that `deploy` reports an unreachable API server."""
    file = tmp_path / "kubeconfig"
    cluster = f"{{name: gone, cluster: {{server: 'http://127.0.0.1:{reserve_port()}'}}}}"
    context = "{name: gone, context: {cluster: gone, user: ''}}"
    file.write_text(
        f"apiVersion: v1\nkind: Config\ncurrent-context: gone\nclusters: [{cluster}]\ncontexts: [{context}]\n"
    )

    result = run_make("deploy", KUBECONFIG=str(file))

    assert result.returncode != 0
    assert "error: nothing was applied: the API server does not respond: " in result.stderr
    assert "refused" in result.stderr


@pytest.mark.parametrize("overlay", ["pigeon", "~no-such-user/pigeon"])
def test_unknown_overlay_is_rejected(overlay: str) -> None:
    """Check that an unknown overlay, or an unknown user's home, is rejected with the list of overlays."""
    with pytest.raises(LocalClusterError, match=rf"OVERLAY={overlay}: .* one of compact, func, .*plain"):
        apply.find_overlay(overlay)


def test_overlay_in_home_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `~` is expanded, since quotes prevent the shell from doing so."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").touch()

    assert apply.find_overlay("~/mine") == tmp_path / "mine"


def test_object_without_namespace_gets_default_namespace() -> None:
    """Check that an object without a namespace gets kubectl's default one, and a cluster-scoped object none."""
    broker, service = (
        {"kind": "Broker", "metadata": {"name": "b"}},
        {"kind": "Service", "metadata": {"namespace": "own"}},
    )
    role = {"kind": "ClusterRole", "metadata": {"name": "r"}}

    objects = preflight.set_default_namespace([broker, service, role], "home")

    assert preflight.list_namespaces(objects) == ["home", "own"]
    assert objects[2] == role


def test_kinds_defined_in_overlay_are_not_required() -> None:
    """Check that a kind whose CustomResourceDefinition is in the overlay is not required from the cluster."""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "spec": {"group": "example.com", "names": {"kind": "Thing"}, "versions": [{"name": "v1"}]},
    }
    custom_resource = {"apiVersion": "example.com/v1", "kind": "Thing"}
    trigger = {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger"}

    assert preflight.list_required_kinds([definition, custom_resource, trigger]) == {
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("eventing.knative.dev/v1", "Trigger"),
    }


@pytest.mark.parametrize(
    ("spec", "is_named"),
    [
        ({"template": {"spec": {"containers": [{"image": preflight.PLACEHOLDER_IMAGE}]}}}, True),
        (
            {
                "jobTemplate": {
                    "spec": {"template": {"spec": {"initContainers": [{"image": preflight.PLACEHOLDER_IMAGE}]}}}
                }
            },
            True,
        ),
        ({"template": {"spec": {"containers": [{"name": "no-image"}, {"image": "registry.example/mine"}]}}}, False),
        ({"encryptedData": {"key": "AgB"}, "template": {"metadata": {"name": "signing"}}}, False),
        ({"template": {"spec": {"volumes": None}}}, False),
        ({"template": "words"}, False),
        (None, False),
    ],
    ids=["deployment", "cron-job", "other-image", "sealed-secret", "no-containers", "text", "null"],
)
def test_only_pod_templates_are_checked_for_placeholder_image(spec: Any, is_named: bool) -> None:
    """Check that only pod templates count as images to run; other kinds may have a field named `template`."""
    users = preflight.list_placeholder_users(
        [{"kind": "Thing", "metadata": {"name": "t"}, "spec": spec}, {"metadata": {}}]
    )

    assert users == (["Thing t"] if is_named else [])


@pytest.mark.slow
@proves("NMO-26", "NMO-26a", "KNM-7")
def test_functional_test_drains_the_named_node(running_state_dir: Path) -> None:
    """Check that the functional test drains the named node until Succeeded, and restores it."""
    before = run_kubectl(running_state_dir, "get", "node", "node-2", "-o", "jsonpath={.spec}")

    result = run_make("cluster-functest", "NODE=node-2", **build_environment(running_state_dir))

    assert result.returncode == 0, result.stdout + result.stderr
    assert "draining node node-2\n" in result.stdout
    assert "  Succeeded, 100 %\n" in result.stdout
    assert result.stdout.endswith("node node-2 is schedulable again\n")
    assert run_kubectl(running_state_dir, "get", "node", "node-2", "-o", "jsonpath={.spec}") == before


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ((), "error: NODE is not set: run make cluster-functest NODE=name with one of node-1"),
        (("NODE=node-9",), 'error: node "node-9" not found: run make cluster-functest NODE=name with one of node-1'),
    ],
    ids=["none", "unknown"],
)
def test_functional_test_requires_the_name_of_a_node(
    running_state_dir: Path, variables: tuple[str, ...], message: str
) -> None:
    """Check that the functional test changes nothing without the name of an existing node, and lists the nodes."""
    before = run_kubectl(
        running_state_dir, "get", "nodes", "-o", "jsonpath={.items[*].metadata.generation} {.items[*].spec}"
    )

    result = run_make("cluster-functest", *variables, **build_environment(running_state_dir))

    assert result.returncode != 0
    assert message in result.stderr
    assert (
        run_kubectl(
            running_state_dir, "get", "nodes", "-o", "jsonpath={.items[*].metadata.generation} {.items[*].spec}"
        )
        == before
    )
    assert "functest-" not in run_kubectl(
        running_state_dir, "get", "nodemaintenances.nodemaintenance.medik8s.io", "-o", "name"
    )


@proves("NMO-26a")
def test_image_target_requires_container_engine(tmp_path: Path) -> None:
    """Check that the image target fails with a message if no container engine works."""
    for program in Path("/usr/bin").iterdir():
        if program.name not in ("podman", "docker", "buildah"):
            (tmp_path / program.name).symlink_to(program)

    result = run_make(*IMAGE_ARGUMENTS, PATH=str(tmp_path))

    assert result.returncode != 0
    assert (
        "error: cannot build an image: no working podman, docker or buildah found: install one of them\n"
        in result.stderr
    )


@proves("NMO-26a")
def test_an_image_is_built_and_pushed_under_its_version(tmp_path: Path) -> None:
    """Check that the image is built and pushed with its version tag; a shell script replaces the engine."""
    engine = tmp_path / "podman"
    engine.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" != "$FAILING" ]\n')
    engine.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    success = run_make(*IMAGE_ARGUMENTS, PATH=path)
    failure = run_make(*IMAGE_ARGUMENTS, PATH=path, FAILING="build")

    name = "registry.example/nodemaintenance:v1.2.3"
    assert success.returncode == 0, success.stderr
    assert failure.returncode != 0
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if line != "info"]
    build, listing, push_call, failing = calls
    assert build.startswith("build --file Dockerfile --build-arg BASE=python:3.13-slim --build-arg VERSION=1.2.3 ")
    assert build.endswith(f"--tag {name} .")
    assert listing.endswith("--target sbom --output type=local,dest=build .")
    assert (push_call, failing) == (f"push {name}", build)


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    """Return a directory whose `podman` logs its calls, and fails if `FAILING` is its first argument."""
    program = tmp_path / "podman"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" != "$FAILING" ]\n')
    program.chmod(0o755)
    return tmp_path


def pop_calls(engine_dir: Path) -> list[str]:
    """Return the engine's calls since the last time, except for `info`."""
    file = engine_dir / "calls"
    lines = file.read_text().splitlines()
    file.unlink()
    return [line for line in lines if line != "info"]


@proves("C30", "KNM-7", "NMO-26")
def test_image_targets_of_both_documents_are_equivalent(engine_dir: Path) -> None:
    """Check that both documents' targets make the same engine calls, and fail if the engine fails."""
    variables, path = IMAGE_ARGUMENTS[1:], f"{engine_dir}:{os.environ['PATH']}"
    calls_by_targets = {}
    for targets in ("container-build-and-push-community",), ("container-build", "container-push"):
        assert run_make(*targets, *variables, PATH=path).returncode == 0
        calls_by_targets[targets] = pop_calls(engine_dir)
        for failing in ("build", "push"):
            assert run_make(*targets, *variables, PATH=path, FAILING=failing).returncode != 0
            assert pop_calls(engine_dir)[-1].startswith(failing)

    first, second = calls_by_targets.values()
    assert first == second
    assert [call.split()[0] for call in first] == ["build", "build", "push"]


@proves("NMO-26", "KNM-7")
@pytest.mark.parametrize("failing", ["", "ruff", "mypy", "pytest"])
def test_make_check_fails_if_linter_or_test_fails(tmp_path: Path, failing: str) -> None:
    """Check that `make check` fails if a linter or a test fails; scripts replace Python and the linters."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "ruff", "mypy"):
        (programs / name).write_text(
            f'#!/bin/sh\ncall="{name} $*"\necho "$call" >> calls\ncase "$call" in *"$FAILING"*) exit 3;; esac\n'
        )
        (programs / name).chmod(0o755)
    for name in ("requirements-dev.lock", "pyproject.toml", ".venv/.stamp"):
        (tmp_path / name).touch()

    result = run_make_in(tmp_path, "check", PYTHON=".venv/bin/python", FAILING=failing or "nothing")

    assert (result.returncode == 0) is (failing == ""), result.stdout + result.stderr
    if not failing:
        calls = (tmp_path / "calls").read_text()
        assert all(call in calls for call in ("ruff check .", "ruff format --check .", "mypy ", "python -m pytest "))
