"""What `kubectl auth can-i --list` shows to whoever has a function's token."""

from __future__ import annotations

import re
from collections.abc import Iterator

from localcluster.knative.kubelet import kubeconfig
from tests.e2e.stage import Stage
from tests.manifests.touches import NAMESPACES, OURS, Right, documented, reaching


def assert_as_documented(stage: Stage, function: str) -> None:
    """In each namespace it is what the function says that it touches, beside what every account may."""
    for namespace in NAMESPACES:
        own = listed(stage, function, namespace) - listed(stage, "default", namespace)
        assert own == reaching(documented(function), namespace), (function, namespace)


def listed(stage: Stage, account: str, namespace: str) -> set[Right]:
    """What `kubectl auth can-i --list` shows to whoever has the account's token."""
    identity = f"--kubeconfig={kubeconfig(stage.local, OURS, account)}"
    said = stage.local.kubectl("auth", "can-i", "--list", "--no-headers", identity, "-n", namespace).stdout
    return {right for line in said.splitlines() for right in _rights(line, namespace)}


def _rights(line: str, namespace: str) -> Iterator[Right]:
    """A line: resource.group/subresource, no paths, names, verbs, each in brackets; without a resource, paths alone."""
    found = re.match(r"(\S+)\s+\[\]\s+\[[^]]*\]\s+\[([^]]*)\]", line)
    if not found:
        assert line.startswith(" "), f"a line that is not understood: {line!r}"
        return
    whole, verbs = found.groups()
    name, _, subresource = whole.partition("/")
    resource, _, group = name.partition(".")
    for verb in verbs.split():
        yield Right(group, resource + (f"/{subresource}" if subresource else ""), verb, namespace)
