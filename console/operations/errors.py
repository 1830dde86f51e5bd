"""Errors that operations raise, each with a message, a remedy, an exit status and an HTTP status."""

from __future__ import annotations

from http import HTTPStatus


class OperationError(Exception):
    """Raised if an operation failed or was refused.

    Attributes:
        message: The error message without the remedy.
        remedy: What the user can do about the error, often a command; "" if the message contains the remedy.
        exit_status: Exit status of a command that fails with this error.
        http_status: HTTP status of a web page that shows this error.
    """

    exit_status = 1

    def __init__(
        self, message: str, remedy: str = "", http_status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE
    ) -> None:
        super().__init__(f"{message}: {remedy}" if remedy else message)
        self.message, self.remedy, self.http_status = message, remedy, http_status


class Refusal(OperationError):
    """Raised if the cluster's state does not permit the operation, such as an unknown node or a name in use."""

    def __init__(self, http_status: HTTPStatus, message: str, remedy: str) -> None:
        super().__init__(message, remedy, http_status)


class NoResult(OperationError):
    """Raised if an operation cannot produce any result.

    The exit status is 2, because some commands, such as `replay`, use 1 for a negative result.
    """

    exit_status = 2
