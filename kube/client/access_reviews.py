"""Asks the API server who a caller is and what the caller may do, before acting on the caller's behalf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kube.client.api import Api
from kube.client.api_errors import Denied
from kube.paths import Object

REVIEWS = "/apis/authorization.k8s.io/v1"
AUTHORIZATION, AUTHENTICATION = "authorization.k8s.io/v1", "authentication.k8s.io/v1"


@dataclass(frozen=True)
class Right:
    """One verb on one cluster-scoped resource; `group` is "" for the core group, `name` is "" for every object."""

    verb: str
    resource: str
    group: str = ""
    name: str = ""

    def attributes(self) -> Object:
        """Return the right as `resourceAttributes` of a review."""
        fields = {"verb": self.verb, "resource": self.resource, "group": self.group}
        return {**fields, "name": self.name} if self.name else fields


async def may(api: Api, right: Right, user: str = "", groups: Sequence[str] = ()) -> bool:
    """Return whether `user` has the right; without `user`, whether the owner of the credentials of `api` has it."""
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec: Object = {"resourceAttributes": right.attributes()}
    spec |= {"user": user, "groups": list(groups)} if user else {}
    body = {"apiVersion": AUTHORIZATION, "kind": kind, "spec": spec}
    answer = await api.create(f"{REVIEWS}/{kind.lower()}s", body)
    return bool(answer["status"].get("allowed"))


async def whoami(api: Api) -> str:
    """Return the user name of the owner of the credentials of `api`, as the API server knows it."""
    body = {"apiVersion": AUTHENTICATION, "kind": "SelfSubjectReview"}
    answer = await api.create(f"/apis/{AUTHENTICATION}/selfsubjectreviews", body)
    return str(answer["status"]["userInfo"].get("username") or "")


def refusal(user: str, right: Right) -> Denied:
    """Build the error with which the API server itself would refuse the request."""
    group = f'API group "{right.group}"'
    return Denied(
        403,
        f'User "{user}" cannot {right.verb} resource "{right.resource}" in {group} at the cluster scope',
    )
