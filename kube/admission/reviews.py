"""AdmissionReview (admission.k8s.io/v1): parses the API server's request and builds the response. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kube.paths import Object

VERSION = "admission.k8s.io/v1"
RESOURCE = "nodemaintenances"


class BadReview(ValueError):
    """The request body is not a valid AdmissionReview."""


@dataclass(frozen=True)
class Question:
    """An admission request of the API server.

    Attributes:
        uid: The uid of the request, which the response repeats.
        creates: Whether the request creates a NodeMaintenance. All other requests are allowed without a check.
        object: The object to create, {} if there is none.
    """

    uid: str
    creates: bool
    object: Object


def question(review: Any) -> Question:
    """Parse the request from a decoded body. Raises `BadReview` with what is missing."""
    request = review.get("request") if isinstance(review, Mapping) else None
    if not isinstance(request, Mapping) or review.get("apiVersion") != VERSION:
        raise BadReview(f"an AdmissionReview of {VERSION} with a request is wanted")
    uid, wanted = request.get("uid"), request.get("object")
    if not isinstance(uid, str) or not uid:
        raise BadReview("request.uid is missing")
    resource = request.get("resource")
    is_ours = isinstance(resource, Mapping) and resource.get("resource") == RESOURCE and not request.get("subResource")
    if not is_ours or request.get("operation") != "CREATE":
        return Question(uid, creates=False, object={})
    if not isinstance(wanted, dict) or not isinstance(wanted.get("metadata"), dict):
        raise BadReview("request.object is missing")
    if not isinstance(wanted.get("spec") or {}, dict):
        raise BadReview("request.object.spec is no object")
    return Question(uid, creates=True, object=wanted)


def answer(question: Question, refusal: str = "", warnings: Sequence[str] = ()) -> Object:
    """Build the AdmissionReview response.

    A nonempty `refusal` denies the request with that message; otherwise the request is allowed with `warnings`.
    """
    response: Object = {"uid": question.uid, "allowed": not refusal}
    if refusal:
        response["status"] = {"code": HTTPStatus.FORBIDDEN, "reason": "Forbidden", "message": refusal}
    elif warnings:
        response["warnings"] = list(warnings)
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}
