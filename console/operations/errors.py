"""Errors that operations raise, each with a message, a remedy, an exit status and an HTTP status."""

from __future__ import annotations

from http import HTTPStatus


class OperationError(Exception):
    """An error that prevented an operation.

    Attributes:
        message: The message without the remedy.
        remedy: What the user can do about it, often a command; "" if the message contains it.
        exit_status: Exit status of a command that ends with this error.
        http_status: HTTP status of a page that shows this error.
    """

    exit_status = 1

    def __init__(
        self, message: str, remedy: str = "", http_status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE
    ) -> None:
        super().__init__(f"{message}: {remedy}" if remedy else message)
        self.message, self.remedy, self.http_status = message, remedy, http_status


class Refusal(OperationError):
    """An operation refused because of the current state: an unknown node, a second maintenance, or a name in use."""

    def __init__(self, http_status: HTTPStatus, message: str, remedy: str) -> None:
        super().__init__(message, remedy, http_status)


class NoResult(OperationError):
    """An error that leaves an operation without a result.

    The command's exit status is 2, because 1 is a valid result of some commands, such as replay.
    """

    exit_status = 2
