"""Tests of what all commands share: help with an example, exit statuses, one-line errors, kubectl plugin."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli import commands
from console.terminal.param_types import Duration
from localcluster.access import UNPRIVILEGED
from tests.console.conftest import ROOT, Run
from tests.proofs import proves

NAMES = ["certificates", "start", "stop", "status", "cordon", "drain", "uncordon", "must-gather", "replay", "redrive"]
NODE_COMMANDS = ["start", "stop", "status", "cordon", "drain", "uncordon"]
OF_THE_JOURNAL = ["events", "deadletters"]
"""Commands that read only a journal and need no cluster."""
SERVING = ["console"]
"""Commands that serve web pages instead of printing output."""
GROUPS = ["mutex"]
IN_GROUPS = ["mutex status", "mutex retry"]
"""Subcommands of the command groups."""


def test_the_commands_are_these() -> None:
    assert sorted(commands.commands) == sorted(NAMES + OF_THE_JOURNAL + SERVING + GROUPS)


@pytest.mark.parametrize("name", NAMES + OF_THE_JOURNAL + SERVING + IN_GROUPS)
def test_every_help_has_an_example_and_the_shared_options(name: str) -> None:
    result = CliRunner().invoke(commands, [*name.split(), "--help"], prog_name="kubectl maintenance")

    assert result.exit_code == 0
    assert f"Usage: kubectl maintenance {name}" in result.stdout
    assert f"Example:\n    kubectl maintenance {name}" in result.stdout
    shared = ("--journal",) if name in OF_THE_JOURNAL else ("--kubeconfig", "--context")
    output = () if name in SERVING else ("--output [table|",)
    for option in (*output, *shared):
        assert option in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-command"],
        ["start"],
        ["mutex", "retry"],
        ["mutex", "status", "-o", "yaml"],
        ["start", "node-1", "--group=openshift"],
        ["start", "node-1", "--timeout=10m"],
        ["stop", "node-1", "--no-wait", "--timeout=10m"],
        ["stop", "node-1", "--timeout=soon"],
        ["status", "-o", "yaml"],
        ["drain", "node-1", "--force=maybe"],
        ["drain", "node-1", "--force="],
        ["status", "--kubeconfig=/no/such/file"],
        ["console", "--listen=8090"],
        ["console", "--listen=nowhere:8090"],
        ["console", "--groups-header=X-Groups"],
        ["console", "--user-header=X-User", "--proxy=nowhere"],
        ["drain", "node-1", "--pod-selector=\udcff"],
        ["start", "node-1", "--reason=\udcff"],
        ["status", "--as=\udcff"],
        ["status", "--as=a\nb"],
        ["status", "--as=a", "--as-group=a\x00"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_2(words: list[str]) -> None:
    result = CliRunner().invoke(commands, words)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize(
    "words",
    [
        *(["start", ""], ["stop", ""], ["status", ""], ["cordon", ""], ["drain", ""], ["uncordon", " "]),
        *(["mutex", "status", ""], ["mutex", "retry", ""], ["redrive", "--yes", ""]),
        *(["start", "node-1", "--name="], ["certificates", "--renew="], ["must-gather", "--namespace="]),
        *(["status", "--context="], ["status", "--as="], ["status", "--as=eve", "--as-group="]),
        *(["events", "--node="], ["events", "--maintenance="], ["events", "--run="]),
        *(["replay", "--id="], ["replay", "--maintenance="], ["replay", "--run="]),
        *(["replay", "--maintenance=node-1", end] for end in ("--from=", "--until=")),
        *([name, "node-1", "--pod-selector=", *dry] for name in ("start", "drain") for dry in ([], ["--dry-run"])),
    ],
    ids=" ".join,
)
def test_an_empty_name_is_exit_2_and_stands_for_nothing(words: list[str]) -> None:
    """X-6: An empty name, as from an unset shell variable, is a usage error and selects no object."""
    result = CliRunner().invoke(commands, words)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith("it is empty: name one, or is a variable of the shell not set?")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        *((f"{name} node-1 node-2", "one node at a time: leave out node-2") for name in NODE_COMMANDS),
        ("start node-1 --force node-2 false", "one node at a time: leave out node-2 false"),
        ("start node-1 --force false", "the value of --force is not a word of its own: write --force=false"),
        ("drain --dry-run none node-1", "the value of --dry-run is not a word of its own: write --dry-run=none"),
        ("events --since 1d --until 2020-01-01", "nothing arrived between: exchange or correct them"),
    ],
)
def test_a_word_too_many_and_no_time_at_all_name_the_remedy(words: str, remedy: str) -> None:
    result = CliRunner().invoke(commands, words.split())

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(remedy)


def test_a_timeout_without_a_wait_names_the_remedy() -> None:
    """X-6: `start` with `--timeout` but without `--wait` is a usage error whose message names `--wait`."""
    result = CliRunner().invoke(commands, ["start", "node-1", "--timeout=10m"])

    assert result.stderr.endswith("this command would not wait: add --wait\n")


@pytest.mark.parametrize(("words", "status"), [("status", 1), ("redrive --all --yes --journal={}/journal.db", 2)])
def test_a_context_that_is_not_there_is_one_line(run: Run, tmp_path: Path, words: str, status: int) -> None:
    (tmp_path / "nothing").touch()
    run("events", f"--journal={tmp_path}/journal.db", f"--import={tmp_path}/nothing")

    result = run(*words.format(tmp_path).split(), "--context", "elsewhere")

    assert result.exit_code == status
    assert result.stderr.startswith("Error: there is no context elsewhere in ")
    assert result.stderr.endswith(": `kubectl config get-contexts` lists those there are\n")


def test_a_server_that_does_not_answer_is_one_line_and_exit_1(tmp_path: Path) -> None:
    """Check that a refused connection to the API server is a one-line error; port 9 (discard) has no listener."""
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    config = {"current-context": "c", "clusters": [cluster], "contexts": [context], "users": [user]}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))

    result = CliRunner().invoke(commands, ["status", f"--kubeconfig={file}"])

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no answer from the API server: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"hello", b"garbage: [", bytes(range(128, 256)), b"[]", b"", b"users: 1"])
def test_a_file_that_is_no_kubeconfig_is_one_line_and_exit_1(tmp_path: Path, content: bytes) -> None:
    """X-6: A file that is not a kubeconfig is a one-line error, whatever its content."""
    file = tmp_path / "kubeconfig"
    file.write_bytes(content)

    result = CliRunner().invoke(commands, ["status", f"--kubeconfig={file}"])

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: no usable kubeconfig at {file}: ")


@proves("OSV-10")
def test_kubectl_finds_the_commands_as_its_own(plugin: dict[str, str]) -> None:
    """OSV-10: `kubectl maintenance` finds the script that pyproject.toml names."""
    assert 'kubectl-maintenance = "console.cli:main"' in (ROOT / "pyproject.toml").read_text()

    words = ["kubectl", "maintenance", "status", "-o", "json"]
    done = subprocess.run(words, env=plugin, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == ["maintenances"]


@pytest.mark.parametrize("name", [*(name for name in NAMES if name not in ("redrive", "replay")), "console"])
def test_groups_of_nobody_are_a_usage_error(name: str) -> None:
    """Check that `--as-group` without `--as` is a usage error, because the API server would reject the request.

    The test leaves out `redrive` and `replay`, which report a missing journal first.
    """
    words = ["node-1"] if name in NODE_COMMANDS and name != "status" else []

    result = CliRunner().invoke(commands, ["--as-group", "staff", name, *words])

    assert result.exit_code == 2
    assert "--as-group is of a user: name one by --as" in result.stderr


def test_a_command_acts_as_somebody_else(run: Run) -> None:
    """Check that `--as` and `--as-group` impersonate a user and groups, as kubectl's options of the same names do.

    The API server authorizes the impersonated user, and also checks that the real user may impersonate.
    """
    refused = run("status", "--as", "eve")
    allowed = run("status", "--as", "eve", "--as-group", "staff", "--as-group", "system:masters", "-o", "json")
    nobody = run("status", "--as", "eve", user=UNPRIVILEGED)

    assert refused.exit_code == 1
    assert 'User "eve" cannot list resource "nodemaintenances"' in refused.stderr
    assert allowed.exit_code == 0, allowed.output
    assert nobody.exit_code == 1
    assert 'User "unprivileged" cannot impersonate' in nobody.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("15", 15), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("200ms", 0.2), ("1.5s", 1.5)],
)
def test_a_duration_is_read_as_kubectl_writes_it(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds
