"""AdmissionReview (admission.k8s.io/v1): the API server's question as facts, and the answer to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kube.paths import Object

VERSION = "admission.k8s.io/v1"
RESOURCE = "nodemaintenances"


class BadReview(ValueError):
    """What was posted is no AdmissionReview."""


@dataclass(frozen=True)
class Question:
    """What the API server asks.

    Attributes:
        uid: the name of the question, which its answer bears.
        creates: a NodeMaintenance is to be created; of anything else nothing is judged.
        object: what is to be created, {} where there is none.
    """

    uid: str
    creates: bool
    object: Object


def question(review: Any) -> Question:
    """The question in a decoded body. Raises `BadReview` naming what is missing."""
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
    """The AdmissionReview that answers it: refused with these words, or, "" there, allowed with these warnings."""
    response: Object = {"uid": question.uid, "allowed": not refusal}
    if refusal:
        response["status"] = {"code": HTTPStatus.FORBIDDEN, "reason": "Forbidden", "message": refusal}
    elif warnings:
        response["warnings"] = list(warnings)
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}
