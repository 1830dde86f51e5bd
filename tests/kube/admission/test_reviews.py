"""Tests for parsing AdmissionReview requests and building their responses."""

from __future__ import annotations

from typing import Any

import pytest

from kube.admission.reviews import API_VERSION, InvalidReview, build_review_response, parse_review
from kube.paths import Object
from tests.kube.samples import make_maintenance


def make_review(**overrides: Any) -> Object:
    request = {
        "uid": "request-1",
        "resource": {"resource": "nodemaintenances"},
        "operation": "CREATE",
        "object": make_maintenance(),
        **overrides,
    }
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": request}


def test_review_of_created_maintenance_is_parsed() -> None:
    review = parse_review(make_review())

    assert (review.uid, review.is_create, review.object) == ("request-1", True, make_maintenance())


@pytest.mark.parametrize(
    "overrides",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"resource": {"resource": "pods"}},
        {"resource": None},
        {"subResource": "status"},
    ],
)
def test_review_of_other_request_is_parsed_without_object(overrides: Object) -> None:
    review = parse_review(make_review(**overrides))

    assert (review.is_create, review.object) == (False, {})


@pytest.mark.parametrize(
    "body",
    [
        [],
        None,
        {},
        {**make_review(), "apiVersion": "admission.k8s.io/v1beta1"},
        {**make_review(), "request": "x"},
        make_review(uid=""),
        make_review(uid=1),
        make_review(object=None),
        make_review(object={"spec": {}}),
        make_review(object={"metadata": {}, "spec": "x"}),
    ],
)
def test_parsing_invalid_admission_review_raises_invalid_review(body: Any) -> None:
    with pytest.raises(InvalidReview):
        parse_review(body)


def test_review_response_has_uid_of_request() -> None:
    review = parse_review(make_review())

    assert build_review_response(review) == {
        "apiVersion": API_VERSION,
        "kind": "AdmissionReview",
        "response": {"uid": "request-1", "allowed": True},
    }
    assert build_review_response(review, warnings=["mind"])["response"] == {
        "uid": "request-1",
        "allowed": True,
        "warnings": ["mind"],
    }
    assert build_review_response(review, "no", ["mind"])["response"] == {
        "uid": "request-1",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no"},
    }
