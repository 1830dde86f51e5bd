"""Admission policies that refuse something for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kube.door.api_errors import Rejected
from kube.paths import Object
from localcluster.processes import await_ready
from tests.chain.mutex.stage import Stage
from tests.chain.scene import Scene

ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@contextmanager
def policy(
    scene: Scene | Stage, name: str, rule: Object, expression: str, message: str, attempt: Callable[[], object]
) -> Iterator[None]:
    """Have requests of `rule` for which `expression` is false refused with `message` while the block runs.

    It is in force once `attempt` is refused.
    """
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": message}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    scene.admin.create(f"{ADMISSION}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec})
    scene.admin.create(f"{ADMISSION}/validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": binding})
    try:
        await_ready("the policy", lambda: is_refused(attempt), scene.product.servers)
        yield
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            scene.admin.run(scene.admin.api.request("DELETE", f"{ADMISSION}/{kind}/{name}"))


def is_refused(attempt: Callable[[], object]) -> bool:
    """Whether the API server refuses that; it forgets a policy some time after its deletion."""
    try:
        attempt()
    except Rejected:
        return True
    return False
