"""Tests for features of all commands: help with examples, exit statuses, one-line errors, and the kubectl plugin."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli import cli
from console.terminal.options import Duration
from localcluster.access import UNPRIVILEGED
from tests.console.conftest import ROOT, RunCommand
from tests.proofs import proves

CLUSTER_COMMANDS = [
    "certificates",
    "preview",
    "start",
    "stop",
    "status",
    "cordon",
    "drain",
    "uncordon",
    "must-gather",
    "replay",
    "redrive",
    "version",
]
NODE_COMMANDS = ["start", "stop", "status", "cordon", "drain", "uncordon"]
JOURNAL_COMMANDS = ["history", "events", "deadletters"]
"""Commands that only read a journal; by default, they read the cluster's journal."""
SERVER_COMMANDS = ["console"]
"""Commands that serve web pages and print no output."""
COMMAND_GROUPS = ["mutex"]
SUBCOMMANDS = ["mutex status", "mutex retry"]
"""Subcommands of the command groups."""


def test_command_list_is_complete() -> None:
    assert sorted(cli.commands) == sorted(CLUSTER_COMMANDS + JOURNAL_COMMANDS + SERVER_COMMANDS + COMMAND_GROUPS)


def list_texts_missing_in_help(name: str, text: str) -> list[str]:
    """Return the required texts that the help of this command does not contain."""
    shared_options = ("--journal",) if name in JOURNAL_COMMANDS else ("--kubeconfig", "--context")
    output_options = () if name in SERVER_COMMANDS else ("--output [table|",)
    usage, example = f"Usage: kubectl maintenance {name}", f"\n    kubectl maintenance {name}"
    required = (usage, f"Example:{example}", *output_options, *shared_options)
    return [
        *(part for part in required if part not in text),
        *(["a second example"] if text.count(example) < 2 else []),
    ]


def test_help_of_every_command_has_examples_and_shared_options() -> None:
    results = {
        name: CliRunner().invoke(cli, [*name.split(), "--help"], prog_name="kubectl maintenance")
        for name in CLUSTER_COMMANDS + JOURNAL_COMMANDS + SERVER_COMMANDS + SUBCOMMANDS
    }
    missing_texts = {name: list_texts_missing_in_help(name, result.stdout) for name, result in results.items()}

    assert results
    assert {name: result.output for name, result in results.items() if result.exit_code != 0} == {}
    assert {name: texts for name, texts in missing_texts.items() if texts} == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["preview"],
        ["start"],
        ["mutex", "retry"],
        ["mutex", "status", "-o", "yaml"],
        ["start", "node-1", "--group=openshift"],
        ["start", "node-1", "--timeout=10m"],
        ["stop", "node-1", "--no-wait", "--timeout=10m"],
        ["stop", "node-1", "--timeout=soon"],
        ["status", "-o", "xml"],
        ["start", "node-1", "--all"],
        ["drain", "-l", "a=b", "node-1"],
        ["start", "node-1", "node-2", "--name=disk"],
        ["start", "--all", "--name=disk"],
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
def test_usage_error_exits_with_status_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["preview", ""],
            ["preview", "node-1", ""],
            ["start", ""],
            ["stop", ""],
            ["status", ""],
            ["cordon", ""],
            ["drain", ""],
            ["uncordon", " "],
        ),
        *([name, *args] for name in ("stop", "drain") for args in (["node/"], ["node-1", ""], ["--selector="])),
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
def test_empty_name_is_usage_error(arguments: list[str]) -> None:
    """X-6: an empty name, for example from an unset shell variable, is a usage error and selects no object."""
    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith("the value is empty: check whether a shell variable is unset")


@pytest.mark.parametrize(
    ("command_line", "remedy"),
    [
        *((name, "name them, or select them with -l SELECTOR or --all") for name in NODE_COMMANDS if name != "status"),
        ("start node-1 --force false", "the value of --force must follow an equals sign: write --force=false"),
        ("drain node-1 --force No", "the value of --force must follow an equals sign: write --force=No"),
        (
            "start node-1 --force=maybe",
            "Invalid value for '--force': 'maybe' is not a valid value: write true or false",
        ),
        ("drain node-1 --dry-run=maybe", "'maybe' is not a valid value: write server, client, none, true or false"),
        (
            "start node-1 --grace-period=abc",
            "Invalid value for '--grace-period': 'abc' is not a valid number of seconds: "
            "write a number such as 30, or -1 for each pod's terminationGracePeriodSeconds",
        ),
        ("start node-1 --skip-wait-for-delete-timeout=-1", "write a number such as 30, or 0 for no limit"),
        (
            "start node-1 --deadline=soon",
            '"soon" is not a positive duration: write hours, minutes and seconds, as in 1h30m',
        ),
        ("start node-1 --pod-selector ==", "'==' is not a condition on a label, such as app=web"),
        ("drain --dry-run none node-1", "the value of --dry-run must follow an equals sign: write --dry-run=none"),
        ("events --since 1d --until 2020-01-01", "so no event can match: correct or swap them"),
    ],
)
def test_usage_error_names_valid_values_or_remedy(command_line: str, remedy: str) -> None:
    result = CliRunner().invoke(cli, command_line.split())

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(remedy)


def test_error_about_timeout_without_wait_names_remedy() -> None:
    """X-6: `start` with `--timeout` but without `--wait` is a usage error whose message names `--wait`."""
    result = CliRunner().invoke(cli, ["start", "node-1", "--timeout=10m"])

    assert result.stderr.endswith("the command would not wait: add --wait\n")


@pytest.mark.parametrize(
    ("command_line", "expected_status"), [("status", 1), ("redrive --all --yes --journal={}/journal.db", 2)]
)
def test_unknown_context_is_one_line_error(
    run_command: RunCommand, tmp_path: Path, command_line: str, expected_status: int
) -> None:
    (tmp_path / "nothing").touch()
    run_command("events", f"--journal={tmp_path}/journal.db", f"--import={tmp_path}/nothing")

    result = run_command(*command_line.format(tmp_path).split(), "--context", "elsewhere")

    assert result.exit_code == expected_status
    assert result.stderr.startswith('Error: context "elsewhere" not found in kubeconfig ')
    assert result.stderr.endswith(": `kubectl config get-contexts` lists the contexts\n")


def test_unreachable_api_server_is_one_line_error(tmp_path: Path) -> None:
    """Check that a refused connection to the API server is a one-line error; port 9 (discard) has no listener."""
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    config = {"current-context": "c", "clusters": [cluster], "contexts": [context], "users": [user]}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))

    result = CliRunner().invoke(cli, ["status", f"--kubeconfig={file}"])

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no response from the API server: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"hello", b"garbage: [", bytes(range(128, 256)), b"[]", b"", b"users: 1"])
def test_invalid_kubeconfig_is_one_line_error(tmp_path: Path, content: bytes) -> None:
    """X-6: a file that is not a kubeconfig is a one-line error, regardless of its content."""
    file = tmp_path / "kubeconfig"
    file.write_bytes(content)

    result = CliRunner().invoke(cli, ["status", f"--kubeconfig={file}"])

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: no usable kubeconfig at {file}: ")
    assert result.stderr.endswith("; correct --kubeconfig\n")
    assert "object" not in result.stderr  # The output contains no message of a Python exception.


@proves("OSV-10")
def test_kubectl_finds_plugin(plugin_environment: dict[str, str]) -> None:
    """OSV-10: `kubectl maintenance` finds the script that pyproject.toml defines."""
    assert 'kubectl-maintenance = "console.cli:main"' in (ROOT / "pyproject.toml").read_text()

    command = ["kubectl", "maintenance", "status", "-o", "json"]
    result = subprocess.run(command, env=plugin_environment, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert list(json.loads(result.stdout)) == ["maintenances"]


@pytest.mark.parametrize("name", [*(name for name in CLUSTER_COMMANDS if name not in ("redrive", "replay")), "console"])
def test_as_group_without_as_is_usage_error(name: str) -> None:
    """Check that `--as-group` without `--as` is a usage error, because the API server would reject the request.

    The test omits `redrive` and `replay`, which first report that the journal is missing.
    """
    arguments = ["node-1"] if name in (*NODE_COMMANDS, "preview") and name != "status" else []

    result = CliRunner().invoke(cli, ["--as-group", "staff", name, *arguments])

    assert result.exit_code == 2
    assert "--as-group requires a user: name one with --as" in result.stderr


def test_as_options_impersonate_user_and_groups(run_command: RunCommand) -> None:
    """Check that `--as` and `--as-group` impersonate a user and groups, like kubectl's options of the same names.

    The API server authorizes the impersonated user, and also checks whether the real user may impersonate that user.
    """
    result = run_command("status", "--as", "eve")
    allowed_result = run_command(
        "status", "--as", "eve", "--as-group", "staff", "--as-group", "system:masters", "-o", "json"
    )
    unprivileged_result = run_command("status", "--as", "eve", user=UNPRIVILEGED)

    assert result.exit_code == 1
    assert 'User "eve" cannot list resource "nodemaintenances"' in result.stderr
    assert allowed_result.exit_code == 0, allowed_result.output
    assert unprivileged_result.exit_code == 1
    assert 'User "unprivileged" cannot impersonate' in unprivileged_result.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("15", 15), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("200ms", 0.2), ("1.5s", 1.5)],
)
def test_duration_is_parsed_as_in_kubectl(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds
