"""Asks the API server who a caller is and what the caller may do, before anything is done in that name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kube.door.api import Api
from kube.door.api_errors import Denied
from kube.paths import Object

REVIEWS = "/apis/authorization.k8s.io/v1"
AUTHORIZATION, AUTHENTICATION = "authorization.k8s.io/v1", "authentication.k8s.io/v1"


@dataclass(frozen=True)
class Right:
    """One verb on one cluster-scoped resource; `group` is "" for the core group, `name` for every object."""

    verb: str
    resource: str
    group: str = ""
    name: str = ""

    def attributes(self) -> Object:
        """As `resourceAttributes` of a review."""
        fields = {"verb": self.verb, "resource": self.resource, "group": self.group}
        return {**fields, "name": self.name} if self.name else fields


async def may(api: Api, right: Right, user: str = "", groups: Sequence[str] = ()) -> bool:
    """Whether `user` has the right; without a user, whether the owner of `api` has."""
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec: Object = {"resourceAttributes": right.attributes()}
    spec |= {"user": user, "groups": list(groups)} if user else {}
    body = {"apiVersion": AUTHORIZATION, "kind": kind, "spec": spec}
    answer = await api.create(f"{REVIEWS}/{kind.lower()}s", body)
    return bool(answer["status"].get("allowed"))


async def whoami(api: Api) -> str:
    """The user name of the owner of `api`, as the API server knows it."""
    body = {"apiVersion": AUTHENTICATION, "kind": "SelfSubjectReview"}
    answer = await api.create(f"/apis/{AUTHENTICATION}/selfsubjectreviews", body)
    return str(answer["status"]["userInfo"].get("username") or "")


def refusal(user: str, right: Right) -> Denied:
    """The error that the API server itself would answer with."""
    group = f'API group "{right.group}"'
    return Denied(
        403,
        f'User "{user}" cannot {right.verb} resource "{right.resource}" in {group} at the cluster scope',
    )
