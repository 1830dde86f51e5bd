"""Tests for the certificates of a `make up` cluster: renewal, listing by the command line, and leaked keys."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from localcluster.processes import wait_until_ready
from localcluster.programs import build
from localcluster.up import state_directory
from tests.localcluster.commands import ROOT, get_process_record, run_kubectl
from tests.proofs import proves

pytestmark = pytest.mark.slow

NAMESPACE = "node-maintenance"
KEY_DIRS = ("servers/etcd", "product/admission")
"""Directories that may contain private keys: the API server's storage, and the webhook's mounted Secret."""
TIMEOUT_SECONDS = 40


def run_cli(directory: Path, *args: str) -> str:
    """Run `kubectl maintenance` on the cluster in this state directory, and return its output."""
    environment = {**os.environ, "KUBECONFIG": str(directory / state_directory.KUBECONFIG_FILE)}
    command = [str(Path(sys.executable).with_name("kubectl-maintenance")), *args]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def list_serials(directory: Path) -> dict[str, str]:
    """Return a map from Secret name to serial number of its certificate, as the command line lists it."""
    certificates = json.loads(run_cli(directory, "certificates", "-o", "json"))["certificates"]
    return {certificate["secret"]: certificate["serial"] for certificate in certificates}


def fetch_served_certificate(directory: Path) -> str:
    """Return the certificate that the webhook presents to clients."""
    get_command = ("get", "validatingwebhookconfiguration", "nodemaintenance-validate", "-o")
    url = urlsplit(run_kubectl(directory, *get_command, "jsonpath={.webhooks[0].clientConfig.url}"))
    return ssl.get_server_certificate((str(url.hostname), url.port or 0))


def read_secret_certificate(directory: Path) -> str:
    """Return the certificate in the webhook's Secret, or "" if the Secret does not exist."""
    output = run_kubectl(directory, "get", "secret", "validate", "-n", NAMESPACE, "--ignore-not-found", "-o", "json")
    return base64.b64decode(json.loads(output)["data"]["tls.crt"]).decode() if output.strip() else ""


@proves("OSV-20", "OSV-23")
@pytest.mark.parametrize("trigger", ["requested", "deleted"])
def test_webhook_certificate_is_renewed_without_restart(running_state_dir: Path, trigger: str) -> None:
    """Check that the certificate is renewed on request, and after its Secret was deleted, without a restart."""
    previous_certificate, pid, serial = (
        fetch_served_certificate(running_state_dir),
        get_process_record(running_state_dir, "validate").pid,
        list_serials(running_state_dir)["validate"],
    )

    if trigger == "requested":
        run_cli(running_state_dir, "certificates", "--renew", "validate")
    else:
        run_kubectl(running_state_dir, "delete", "secret", "validate", "-n", NAMESPACE)

    wait_until_ready(
        "a new certificate",
        lambda: read_secret_certificate(running_state_dir) not in ("", previous_certificate),
        [],
        TIMEOUT_SECONDS,
    )
    wait_until_ready(
        "the server to use the certificate",
        lambda: fetch_served_certificate(running_state_dir) == read_secret_certificate(running_state_dir),
        [],
        TIMEOUT_SECONDS,
    )
    wait_until_ready("the list", lambda: list_serials(running_state_dir)["validate"] != serial, [], TIMEOUT_SECONDS)
    assert get_process_record(running_state_dir, "validate").pid == pid
    assert "no node with name unknown" in create_denied_maintenance(running_state_dir)


def create_denied_maintenance(directory: Path) -> str:
    """Try to create a NodeMaintenance for an unknown node, which the webhook denies; return kubectl's error."""
    metadata, spec = {"name": "unknown"}, {"nodeName": "unknown"}
    body = {"apiVersion": "nodemaintenance.medik8s.io/v1beta1", "kind": "NodeMaintenance"}
    command = [
        str(build.ensure_programs() / "kubectl"),
        f"--kubeconfig={directory / state_directory.KUBECONFIG_FILE}",
        "create",
        "-f",
        "-",
    ]
    text = json.dumps({**body, "metadata": metadata, "spec": spec})
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60).stderr


@proves("OSV-23", "X-4")
def test_no_private_key_is_outside_of_secrets(running_state_dir: Path, tmp_path: Path) -> None:
    """Check that no file outside of `KEY_DIRS` contains a private key.

    The test renews a certificate, and creates a dead letter and a must-gather archive. It then searches the archive and
    all files of the cluster, including databases and logs.
    """
    key_parts = extract_key_parts(running_state_dir)
    previous_certificate = fetch_served_certificate(running_state_dir)
    run_cli(running_state_dir, "certificates", "--renew", "validate")
    wait_until_ready(
        "another certificate",
        lambda: (
            fetch_served_certificate(running_state_dir)
            == read_secret_certificate(running_state_dir)
            != previous_certificate
        ),
        [],
        TIMEOUT_SECONDS,
    )
    key_parts |= extract_key_parts(running_state_dir)
    create_dead_letter(running_state_dir)
    run_cli(
        running_state_dir,
        "must-gather",
        "--file",
        str(tmp_path / "all.tar.gz"),
        "--journal",
        str(running_state_dir / "product" / "journal.db"),
    )

    files = {
        file.relative_to(running_state_dir): file
        for file in running_state_dir.rglob("*")
        if file.is_file() and not is_in_key_dir(file, running_state_dir)
    }
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        archive.extractall(tmp_path / "archive", filter="data")
    files |= {file.relative_to(tmp_path): file for file in (tmp_path / "archive").rglob("*") if file.is_file()}

    contents = {name: file.read_bytes() for name, file in files.items()}
    leaking = {str(name) for name, content in contents.items() for key_part in key_parts if key_part in content}
    # Each of three keys (two of the webhook, and one of its CA) contributes four parts.
    assert len(key_parts) == 3 * 4
    assert {name.name for name in contents} >= {
        "journal.db",
        "delivery.db",
        "functions.log",
        "delivery.log",
        "audit.log",
    }
    assert b"renew-certificates" in b"".join(contents.values())
    assert leaking == set()


def extract_key_parts(directory: Path) -> set[bytes]:
    """Return the secret part of each private key in a Secret, both as bytes and in the encodings of its files.

    The public key in the same file is omitted, because certificates also contain it.
    """
    secrets = json.loads(run_kubectl(directory, "get", "secrets", "-A", "-o", "json"))["items"]
    values = [
        value for secret in secrets for name, value in (secret.get("data") or {}).items() if name.endswith(".key")
    ]
    pem_files = [base64.b64decode(value).decode().splitlines() for value in values]
    der_keys = [base64.b64decode("".join(pem_lines[1:-1])) for pem_lines in pem_files]
    pem = {pem_part.encode() for pem_lines in pem_files for pem_part in (pem_lines[1][48:], pem_lines[2][:24])}
    return {der_key[36:68] for der_key in der_keys} | pem | {value[104:156].encode() for value in values}


def is_in_key_dir(file: Path, directory: Path) -> bool:
    return any(file.is_relative_to(directory / key_dir) for key_dir in KEY_DIRS)


def create_dead_letter(directory: Path) -> None:
    """Post an unsigned event, which becomes a dead letter because the function rejects it."""
    hints = (directory / state_directory.READY_FILE).read_text()
    (broker,) = [line.partition(": ")[2] for line in hints.splitlines() if line.startswith("broker: ")]
    attributes = {
        "specversion": "1.0",
        "id": "unsigned",
        "source": "/unsigned",
        "type": "dev.nodemaintenance.node.cordoned",
    }
    headers = {f"ce-{name}": value for name, value in attributes.items()}
    requests.post(broker, json={}, headers=headers, timeout=10).raise_for_status()
    wait_until_ready("the dead letter", lambda: "unsigned" in list_dead_letters(directory), [], TIMEOUT_SECONDS)


def list_dead_letters(directory: Path) -> str:
    return run_cli(directory, "deadletters", "--journal", str(directory / "product" / "journal.db"), "-o", "json")
