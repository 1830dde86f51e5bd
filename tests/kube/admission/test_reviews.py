"""Tests of parsing and building AdmissionReviews."""

from __future__ import annotations

from typing import Any

import pytest

from kube.admission.reviews import VERSION, BadReview, answer, question
from kube.paths import Object
from tests.kube.samples import maintenance


def review(**more: Any) -> Object:
    request = {
        "uid": "question-1",
        "resource": {"resource": "nodemaintenances"},
        "operation": "CREATE",
        "object": maintenance(),
        **more,
    }
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "request": request}


def test_the_creation_of_a_maintenance_is_a_question() -> None:
    asked = question(review())

    assert (asked.uid, asked.creates, asked.object) == ("question-1", True, maintenance())


@pytest.mark.parametrize(
    "other",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"resource": {"resource": "pods"}},
        {"resource": None},
        {"subResource": "status"},
    ],
)
def test_of_anything_else_nothing_is_judged(other: Object) -> None:
    asked = question(review(**other))

    assert (asked.creates, asked.object) == (False, {})


@pytest.mark.parametrize(
    "body",
    [
        [],
        None,
        {},
        {**review(), "apiVersion": "admission.k8s.io/v1beta1"},
        {**review(), "request": "x"},
        review(uid=""),
        review(uid=1),
        review(object=None),
        review(object={"spec": {}}),
        review(object={"metadata": {}, "spec": "x"}),
    ],
)
def test_what_is_no_review_is_said_so(body: Any) -> None:
    with pytest.raises(BadReview):
        question(body)


def test_an_answer_bears_the_name_of_its_question() -> None:
    asked = question(review())

    assert answer(asked) == {
        "apiVersion": VERSION,
        "kind": "AdmissionReview",
        "response": {"uid": "question-1", "allowed": True},
    }
    assert answer(asked, warnings=["mind"])["response"] == {"uid": "question-1", "allowed": True, "warnings": ["mind"]}
    assert answer(asked, "no", ["mind"])["response"] == {
        "uid": "question-1",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no"},
    }
