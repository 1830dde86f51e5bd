"""Helper that temporarily rejects requests with a ValidatingAdmissionPolicy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kube.client.api_errors import Rejected
from kube.paths import Object
from localcluster.processes import wait_until_ready
from tests.chain.environment import EventChainEnvironment
from tests.chain.mutex.environment import MutexEnvironment

ADMISSION_API_PATH = "/apis/admissionregistration.k8s.io/v1"


@contextmanager
def apply_policy(
    environment: EventChainEnvironment | MutexEnvironment,
    name: str,
    rule: Object,
    expression: str,
    message: str,
    send_request: Callable[[], object],
) -> Iterator[None]:
    """Apply a ValidatingAdmissionPolicy for the duration of the block.

    The policy rejects requests that match `rule` and for which the CEL `expression` is false. The block begins once
    the policy is in effect, that is, once the API server rejects the request that `send_request` sends.
    """
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": message}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    environment.client.create(
        f"{ADMISSION_API_PATH}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec}
    )
    environment.client.create(
        f"{ADMISSION_API_PATH}/validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": binding}
    )
    try:
        wait_until_ready("the policy", lambda: is_rejected(send_request), environment.product.servers)
        yield
    finally:
        for resource in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            environment.client.run(environment.client.api.request("DELETE", f"{ADMISSION_API_PATH}/{resource}/{name}"))


def is_rejected(send_request: Callable[[], object]) -> bool:
    """Return whether the API server rejects the request that `send_request` sends."""
    try:
        send_request()
    except Rejected:
        return True
    return False
