"""Errors of operations: the sentence for a person, the remedy, and the exit and HTTP status that say the same."""

from __future__ import annotations

from http import HTTPStatus


class OperationError(Exception):
    """What kept an operation from being done.

    Attributes:
        message: the sentence without the remedy.
        remedy: what a person can do about it, often a command; "" where the message says it.
        exit_status: of a command that ends with it.
        http_status: of a page that ends with it.
    """

    exit_status = 1

    def __init__(
        self, message: str, remedy: str = "", http_status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE
    ) -> None:
        super().__init__(f"{message}: {remedy}" if remedy else message)
        self.message, self.remedy, self.http_status = message, remedy, http_status


class Refusal(OperationError):
    """What is not done because of what there is: an unknown node, a second maintenance, a name that is taken."""

    def __init__(self, http_status: HTTPStatus, message: str, remedy: str) -> None:
        super().__init__(message, remedy, http_status)


class NoResult(OperationError):
    """What keeps an operation from a result where exit status 1 is one, as it is of a replay: its own status is 2."""

    exit_status = 2


class InvalidSelector(OperationError):
    """A label selector that the API server cannot read."""

    exit_status = 2

    def __init__(self, message: str) -> None:
        super().__init__(message, http_status=HTTPStatus.BAD_REQUEST)
