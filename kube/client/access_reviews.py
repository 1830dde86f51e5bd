"""Asks the API server for a caller's user name and permissions, before acting on the caller's behalf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kube.client.api import Api
from kube.client.api_errors import Denied
from kube.paths import Object

AUTHORIZATION_PATH = "/apis/authorization.k8s.io/v1"
AUTHORIZATION_API_VERSION, AUTHENTICATION_API_VERSION = "authorization.k8s.io/v1", "authentication.k8s.io/v1"


@dataclass(frozen=True)
class Permission:
    """One verb on a cluster-scoped resource; `group` is "" for the core group, and `name` is "" for every object."""

    verb: str
    resource: str
    group: str = ""
    name: str = ""

    def describe(self) -> str:
        """Return the permission in the words of the API server's errors, for a sentence such as "You cannot ..."."""
        return f'{self.verb} resource "{self.resource}" in API group "{self.group}" at the cluster scope'

    def build_resource_attributes(self) -> Object:
        """Return the permission as the `resourceAttributes` of an access review."""
        fields = {"verb": self.verb, "resource": self.resource, "group": self.group}
        return {**fields, "name": self.name} if self.name else fields


async def is_allowed(api: Api, permission: Permission, user: str = "", groups: Sequence[str] = ()) -> bool:
    """Return whether `user` has the permission; if `user` is empty, whether the client's own user has it."""
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec: Object = {"resourceAttributes": permission.build_resource_attributes()}
    spec |= {"user": user, "groups": list(groups)} if user else {}
    body = {"apiVersion": AUTHORIZATION_API_VERSION, "kind": kind, "spec": spec}
    review = await api.create(f"{AUTHORIZATION_PATH}/{kind.lower()}s", body)
    return bool(review["status"].get("allowed"))


async def whoami(api: Api) -> str:
    """Return the user name that the API server derives from the client's credentials."""
    body = {"apiVersion": AUTHENTICATION_API_VERSION, "kind": "SelfSubjectReview"}
    review = await api.create(f"/apis/{AUTHENTICATION_API_VERSION}/selfsubjectreviews", body)
    return str(review["status"]["userInfo"].get("username") or "")


def build_forbidden_error(user: str, permission: Permission) -> Denied:
    """Build the error that the API server itself would return for a request without this permission."""
    return Denied(403, f'User "{user}" cannot {permission.describe()}')
