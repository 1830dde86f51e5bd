"""Tests for the make targets `deploy` and `cluster-functest`, and for those that build the container image."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localcluster.deploy import kubectl, preflight
from localcluster.errors import LocalClusterError
from localcluster.processes import reserve_port
from localcluster.programs import build
from localcluster.up import state_directory
from tests.localcluster.commands import ROOT, run_kubectl
from tests.proofs import proves

IMAGE_ARGUMENTS = (
    "container-build-and-push-community",
    "IMAGE=registry.example/nodemaintenance",
    "VERSION=1.2.3",
    "PUSHED=/dev/null",
)


def run_make(target: str, *variables: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a make target in the repository."""
    tools = os.pathsep.join([str(build.ensure_programs()), os.environ["PATH"]])
    return run_make_in_directory(ROOT, target, *variables, **{"PATH": tools, **environment})


def run_make_in_directory(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make in a directory."""
    command, variables = ["make", "--no-print-directory", *arguments], {**os.environ, **environment}
    return subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, check=False, timeout=120
    )


def build_environment(directory: Path) -> dict[str, str]:
    """Return the environment variable that selects the cluster in this directory."""
    return {"KUBECONFIG": str(directory / state_directory.KUBECONFIG_FILE)}


def list_install_objects(directory: Path) -> str:
    """Return the name and resourceVersion of each object of the kinds that an install creates."""
    cluster_kinds = "crd,namespace,clusterrole,clusterrolebinding"
    namespaced_kinds = "serviceaccount,role,rolebinding,service,deployment,configmap,networkpolicy"
    jsonpath_option = "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}"
    return run_kubectl(directory, "get", cluster_kinds, jsonpath_option) + run_kubectl(
        directory, "get", namespaced_kinds, "-A", jsonpath_option
    )


@pytest.mark.slow
@proves("NMO-26a")
def test_deploy_applies_nothing_without_knative(running_state_dir: Path) -> None:
    """Check that `make deploy` lists the missing kinds and applies nothing if Knative is not installed."""
    objects_before = list_install_objects(running_state_dir)

    result = run_make("deploy", **build_environment(running_state_dir))

    assert result.returncode != 0
    assert (
        "error: nothing was applied: the cluster does not serve Broker (eventing.knative.dev/v1), "
        "Trigger (eventing.knative.dev/v1)," in result.stderr
    )
    assert "Service (serving.knative.dev/v1)" in result.stderr
    assert ": install Knative first" in result.stderr
    assert list_install_objects(running_state_dir) == objects_before


@pytest.mark.slow
@proves("NMO-26a")
def test_deploy_applies_overlay_whose_kinds_are_served(running_state_dir: Path, tmp_path: Path) -> None:
    """Check that `make deploy` applies an overlay from any directory, and that a second run changes nothing.

    The overlay's objects need not have a namespace.
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

    first_result, second_result = (
        run_make("deploy", f"OVERLAY={overlay}", **build_environment(running_state_dir)) for _ in range(2)
    )

    assert (first_result.returncode, first_result.stdout) == (0, "configmap/mine created\nservice/mine created\n"), (
        first_result.stderr
    )
    assert (second_result.returncode, second_result.stdout) == (0, "configmap/mine unchanged\nservice/mine unchanged\n")


@proves("NMO-26a")
def test_deploy_reports_unreachable_api_server(tmp_path: Path) -> None:
    """Check that `make deploy` reports an unreachable API server."""
    kubeconfig = tmp_path / "kubeconfig"
    cluster = f"{{name: gone, cluster: {{server: 'http://127.0.0.1:{reserve_port()}'}}}}"
    context = "{name: gone, context: {cluster: gone, user: ''}}"
    kubeconfig.write_text(
        f"apiVersion: v1\nkind: Config\ncurrent-context: gone\nclusters: [{cluster}]\ncontexts: [{context}]\n"
    )

    result = run_make("deploy", KUBECONFIG=str(kubeconfig))

    assert result.returncode != 0
    assert "error: nothing was applied: the API server does not respond: " in result.stderr
    assert "refused" in result.stderr


@proves("NMO-26a")
def test_deploy_rejects_image_without_registry() -> None:
    """Check that `make deploy` with an empty REGISTRY applies nothing, and names the variable."""
    result = run_make("deploy", "VERSION=0.1.0", "REGISTRY=")

    assert result.returncode != 0
    assert (
        "error: nothing was applied: the image /nodemaintenance:v0.1.0 has no registry: set REGISTRY" in result.stderr
    )


@pytest.mark.parametrize("overlay", ["pigeon", "~no-such-user/pigeon"])
def test_unknown_overlay_is_rejected(overlay: str) -> None:
    """Check that an unknown overlay, or one in an unknown user's home, is rejected with the list of overlays."""
    with pytest.raises(LocalClusterError, match=rf"OVERLAY={overlay}: .* one of compact, func, .*plain"):
        kubectl.find_overlay(overlay)


def test_overlay_in_home_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `make deploy` expands `~`, because the shell does not expand `~` within quotes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").touch()

    assert kubectl.find_overlay("~/mine") == tmp_path / "mine"


def test_object_without_namespace_gets_default_namespace() -> None:
    """Check that an object without a namespace gets kubectl's default namespace, unless it is cluster-scoped."""
    broker, service = (
        {"kind": "Broker", "metadata": {"name": "b"}},
        {"kind": "Service", "metadata": {"namespace": "own"}},
    )
    role = {"kind": "ClusterRole", "metadata": {"name": "r"}}

    objects = preflight.set_default_namespace([broker, service, role], "home")

    assert preflight.list_namespaces(objects) == ["home", "own"]
    assert objects[2] == role


def test_kinds_defined_in_overlay_need_not_be_served() -> None:
    """Check that a kind whose CustomResourceDefinition is in the overlay need not be served by the cluster."""
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
    ("spec", "is_reported"),
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
def test_only_pod_templates_are_checked_for_placeholder_image(spec: Any, is_reported: bool) -> None:
    """Check that only pod templates are searched for images, since a field `template` may have another meaning."""
    object_names = preflight.list_objects_with_placeholder_image(
        [{"kind": "Thing", "metadata": {"name": "t"}, "spec": spec}, {"metadata": {}}]
    )

    assert object_names == (["Thing t"] if is_reported else [])


@pytest.mark.slow
@proves("NMO-26", "NMO-26a", "KNM-7")
def test_cluster_functest_drains_and_restores_given_node(running_state_dir: Path) -> None:
    """Check that `make cluster-functest` drains the given node completely, and restores it."""
    spec_before = run_kubectl(running_state_dir, "get", "node", "node-2", "-o", "jsonpath={.spec}")

    result = run_make("cluster-functest", "NODE=node-2", **build_environment(running_state_dir))

    assert result.returncode == 0, result.stdout + result.stderr
    assert "draining node node-2\n" in result.stdout
    assert "  Succeeded, 100 %\n" in result.stdout
    assert result.stdout.endswith("node node-2 is schedulable again\n")
    assert run_kubectl(running_state_dir, "get", "node", "node-2", "-o", "jsonpath={.spec}") == spec_before


@pytest.mark.slow
@proves("NMO-26a")
def test_cluster_functest_without_node_drains_worker_with_fewest_pods(running_state_dir: Path) -> None:
    """Check that `make cluster-functest` without NODE drains the worker with the fewest pods."""
    run_kubectl(running_state_dir, "cordon", "node-1")
    run_kubectl(running_state_dir, "delete", "pods", "--all", "-n", "default")
    run_kubectl(running_state_dir, "rollout", "status", "deployment/web", "--timeout=60s")
    run_kubectl(running_state_dir, "uncordon", "node-1")

    result = run_make("cluster-functest", **build_environment(running_state_dir))

    assert result.returncode == 0, result.stdout + result.stderr
    assert "draining node node-1\n" in result.stdout


@pytest.mark.slow
@proves("NMO-26a")
def test_cluster_functest_rejects_unknown_node(running_state_dir: Path) -> None:
    """Check that `make cluster-functest` with an unknown node lists the nodes, and changes nothing."""
    nodes_before = run_kubectl(
        running_state_dir, "get", "nodes", "-o", "jsonpath={.items[*].metadata.generation} {.items[*].spec}"
    )

    result = run_make("cluster-functest", "NODE=node-9", **build_environment(running_state_dir))

    assert result.returncode != 0
    assert 'error: node "node-9" not found: run make cluster-functest NODE=name with one of node-1' in result.stderr
    assert (
        run_kubectl(
            running_state_dir, "get", "nodes", "-o", "jsonpath={.items[*].metadata.generation} {.items[*].spec}"
        )
        == nodes_before
    )
    assert "functest-" not in run_kubectl(
        running_state_dir, "get", "nodemaintenances.nodemaintenance.medik8s.io", "-o", "name"
    )


@proves("NMO-26a")
def test_image_target_requires_container_engine(tmp_path: Path) -> None:
    """Check that `make image` fails with a message if no working container engine is installed."""
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
def test_image_is_built_and_pushed_with_version_tag(tmp_path: Path) -> None:
    """Check that the image is built and pushed with its version tag; a shell script replaces the container engine."""
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
    build_call, sbom_call, push_call, failing_call = calls
    assert build_call.startswith("build --file Dockerfile --build-arg BASE=python:3.13-slim --build-arg VERSION=1.2.3 ")
    assert build_call.endswith(f"--tag {name} .")
    assert sbom_call.endswith("--target sbom --output type=local,dest=build .")
    assert (push_call, failing_call) == (f"push {name}", build_call)


@proves("NMO-26a")
def test_image_is_pushed_to_default_registry_and_deployed(engine_dir: Path) -> None:
    """Check that the documented command, with only a version, pushes to the default registry over HTTP.

    `make deploy` then installs this image.
    """
    path, pushed = f"{engine_dir}:{os.environ['PATH']}", engine_dir / "pushed-image"
    name = "localhost:5000/nodemaintenance:v1.2.3"

    result = run_make("container-build-and-push-community", f"PUSHED={pushed}", PATH=path, VERSION="1.2.3")
    command = run_make("deploy", "--dry-run", f"PUSHED={pushed}").stdout

    assert result.returncode == 0, result.stderr
    assert pop_logged_calls(engine_dir)[-1] == f"push --tls-verify=false {name}"
    assert f"localcluster.deploy apply 'knative' --image '' --pushed-image '{name}'" in command


@proves("NMO-26a")
def test_push_requires_version(engine_dir: Path) -> None:
    """Check that the error about a missing version names the variables and the default registry."""
    result = run_make("container-build-and-push-community", PATH=f"{engine_dir}:{os.environ['PATH']}")

    assert result.returncode != 0
    assert "error: VERSION is required: " in result.stderr
    assert "REGISTRY=registry.example if the registry is not localhost:5000" in result.stderr


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    """Create a directory with a fake `podman`, which logs its calls and fails if its first argument is `$FAILING`."""
    program = tmp_path / "podman"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" != "$FAILING" ]\n')
    program.chmod(0o755)
    return tmp_path


def pop_logged_calls(engine_dir: Path) -> list[str]:
    """Return and delete the logged calls of the container engine, except for `info`."""
    log_file = engine_dir / "calls"
    lines = log_file.read_text().splitlines()
    log_file.unlink()
    return [line for line in lines if line != "info"]


@proves("C30", "KNM-7", "NMO-26")
def test_combined_and_separate_image_targets_are_equivalent(engine_dir: Path) -> None:
    """Check that one target for build and push is the same as two targets, and that it fails if the engine fails."""
    variables, path = IMAGE_ARGUMENTS[1:], f"{engine_dir}:{os.environ['PATH']}"
    calls_by_targets = {}
    for targets in ("container-build-and-push-community",), ("container-build", "container-push"):
        assert run_make(*targets, *variables, PATH=path).returncode == 0
        calls_by_targets[targets] = pop_logged_calls(engine_dir)
        for failing_command in ("build", "push"):
            assert run_make(*targets, *variables, PATH=path, FAILING=failing_command).returncode != 0
            assert pop_logged_calls(engine_dir)[-1].startswith(failing_command)

    first_calls, second_calls = calls_by_targets.values()
    assert first_calls == second_calls
    assert [call.split()[0] for call in first_calls] == ["build", "build", "push"]


@proves("NMO-26", "KNM-7")
@pytest.mark.parametrize("failing_program", ["", "ruff", "mypy", "pytest"])
def test_make_check_fails_if_linter_or_test_fails(tmp_path: Path, failing_program: str) -> None:
    """Check that `make check` fails if a linter or a test fails; fake scripts replace Python and the linters."""
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

    result = run_make_in_directory(tmp_path, "check", PYTHON=".venv/bin/python", FAILING=failing_program or "nothing")

    assert (result.returncode == 0) is (failing_program == ""), result.stdout + result.stderr
    if not failing_program:
        calls = (tmp_path / "calls").read_text()
        assert all(call in calls for call in ("ruff check .", "ruff format --check .", "mypy ", "python -m pytest "))
