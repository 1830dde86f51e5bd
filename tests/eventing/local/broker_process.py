"""Helpers for tests of the local delivery: a real broker process, and builders for manifests and events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import requests
import yaml

from localcluster.http_receiver import TIMEOUT_SECONDS, Response

ROOT = Path(__file__).parents[3]


class BrokerProcess:
    """A `python -m eventing.local.broker` process; `lines` are its log lines since the last restart."""

    program: tuple[str, ...] = ("-m", "eventing.local.broker")

    def __init__(
        self, directory: Path, manifests: Iterable[Mapping[str, Any]], functions: str, **environment: str
    ) -> None:
        self.directory = directory
        self.manifests = directory / "manifests.yaml"
        self.manifests.write_text(yaml.safe_dump_all(manifests))
        self.functions = functions
        self.environment = environment
        self.lines: list[dict[str, Any]] = []
        self.output = ""
        self._changed = threading.Condition()
        self.start()
        self.url = self.wait_for_log_line(msg="listening")["url"]

    def build_command(self, listen: str = "127.0.0.1:0") -> list[str]:
        arguments = [
            "--functions",
            self.functions,
            "--database",
            str(self.directory / "delivery.db"),
            "--listen",
            listen,
        ]
        return [sys.executable, *self.program, "--manifests", str(self.manifests), *arguments]

    def start(self, listen: str = "127.0.0.1:0") -> None:
        self.process = subprocess.Popen(
            self.build_command(listen),
            env={**os.environ, **self.environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_output, args=(self.process,), daemon=True)
        self._reader.start()

    def restart(self) -> None:
        """Restart the process with the same port and database, and wait until it listens."""
        self.lines.clear()
        self.start(self.url.removeprefix("http://"))
        self.wait_for_log_line(msg="listening")

    def _read_output(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self.output += line
                if line.startswith("{"):
                    self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def find_log_lines(self, **fields: Any) -> list[dict[str, Any]]:
        return [line for line in self.lines if fields.items() <= line.items()]

    def wait_for_log_line(self, **fields: Any) -> dict[str, Any]:
        """Wait until the broker has logged a line with these fields; return the first such line."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.find_log_lines(**fields)), TIMEOUT_SECONDS), self.output
            return self.find_log_lines(**fields)[0]

    def post(self, body: bytes | str = b"{}", path: str = "/", **attributes: str) -> requests.Response:
        """Post an event in binary mode, and check that the broker accepts it."""
        response = requests.post(self.url + path, data=body, headers=build_binary_headers(**attributes), timeout=10)
        assert response.status_code == 202, response.text
        return response

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._wait_for_exit()

    def stop(self) -> int:
        """Stop the process with SIGTERM, and return its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self._wait_for_exit()

    def _wait_for_exit(self) -> int:
        status = self.process.wait(timeout=15)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def build_binary_headers(**attributes: str) -> dict[str, str]:
    """Build the headers of an event in binary mode."""
    event_attributes = {"specversion": "1.0", "id": "1", "source": "/test", "type": "test.event", **attributes}
    content_type = event_attributes.pop("datacontenttype", "application/json")
    return {"content-type": content_type, **{f"ce-{name}": value for name, value in event_attributes.items()}}


def build_trigger(
    name: str, *, subscriber: str = "", delivery: Mapping[str, Any] | None = None, **attributes: str
) -> dict[str, Any]:
    """Build a Trigger manifest; the name of the subscriber's Service defaults to the Trigger's name."""
    spec: dict[str, Any] = {"broker": "default", "subscriber": build_service_reference(subscriber or name)}
    if attributes:
        spec["filter"] = {"attributes": attributes}
    if delivery is not None:
        spec["delivery"] = dict(delivery)
    return build_manifest("eventing.knative.dev/v1", "Trigger", name, spec)


def build_service_reference(name: str) -> dict[str, Any]:
    return {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "namespace": "test", "name": name}}


def build_source(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Build the manifest of an event source whose sink is the Broker."""
    ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "namespace": "test", "name": "default"}
    return build_manifest("sources.knative.dev/v1", kind, name, {**spec, "sink": {"ref": ref}})


def build_manifest(api_version: str, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "test"},
        "spec": dict(spec),
    }


def build_event_response(**attributes: str) -> Response:
    """Build an HTTP response that contains an event."""
    return Response(200, build_binary_headers(**attributes), b'{"answered": true}')
