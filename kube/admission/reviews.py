"""AdmissionReview (admission.k8s.io/v1): parses the API server's request and builds the response. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kube.paths import Object

API_VERSION = "admission.k8s.io/v1"
MAINTENANCES_RESOURCE = "nodemaintenances"


class InvalidReview(ValueError):
    """Error for a request body that is not a valid AdmissionReview."""


@dataclass(frozen=True)
class AdmissionRequest:
    """An admission request from the API server.

    Attributes:
        uid: The uid of the request, which the response repeats.
        is_create: Whether the request creates a NodeMaintenance. All other requests are allowed without a check.
        object: The object that the request creates, {} if `is_create` is false.
    """

    uid: str
    is_create: bool
    object: Object


def parse_review(review: Any) -> AdmissionRequest:
    """Parse the request in a decoded body. Raises `InvalidReview`, which names the missing or invalid field."""
    request = review.get("request") if isinstance(review, Mapping) else None
    if not isinstance(request, Mapping) or review.get("apiVersion") != API_VERSION:
        raise InvalidReview(f"the body is not an AdmissionReview of {API_VERSION} with a request")
    uid, new_object = request.get("uid"), request.get("object")
    if not isinstance(uid, str) or not uid:
        raise InvalidReview("request.uid is missing")
    resource = request.get("resource")
    is_maintenance = (
        isinstance(resource, Mapping)
        and resource.get("resource") == MAINTENANCES_RESOURCE
        and not request.get("subResource")
    )
    if not is_maintenance or request.get("operation") != "CREATE":
        return AdmissionRequest(uid, is_create=False, object={})
    if not isinstance(new_object, dict) or not isinstance(new_object.get("metadata"), dict):
        raise InvalidReview("request.object is missing")
    if not isinstance(new_object.get("spec") or {}, dict):
        raise InvalidReview("request.object.spec is not an object")
    return AdmissionRequest(uid, is_create=True, object=new_object)


def build_review_response(request: AdmissionRequest, refusal: str = "", warnings: Sequence[str] = ()) -> Object:
    """Build the AdmissionReview response.

    A nonempty `refusal` denies the request with that message; otherwise the request is allowed with `warnings`.
    """
    response: Object = {"uid": request.uid, "allowed": not refusal}
    if refusal:
        response["status"] = {"code": HTTPStatus.FORBIDDEN, "reason": "Forbidden", "message": refusal}
    elif warnings:
        response["warnings"] = list(warnings)
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
