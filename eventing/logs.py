"""Structured logging of functions and local delivery: one JSON object per line on standard output (KNM-5, C31)."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LOGGER = logging.getLogger("delivery")
BOUND_FIELDS: ContextVar[dict[str, Any]] = ContextVar("bound_fields", default={})  # noqa: B039 - never mutated


class JsonFormatter(logging.Formatter):
    """Log formatter that writes a record as one JSON object.

    The fields are `level`, `ts` (epoch seconds), `logger`, `msg`, the fields of `bind_fields`, and the record's own
    `fields`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one JSON object without line breaks."""
        line = {"level": record.levelname.lower(), "ts": round(record.created, 6), "logger": record.name}
        line |= {"msg": record.getMessage(), **BOUND_FIELDS.get(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


LOGGING_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": JsonFormatter}},
    "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "json"}},
    "root": {"level": "INFO", "handlers": ["out"]},
    "loggers": {"gunicorn.error": {"level": "INFO", "handlers": ["out"], "propagate": False}},
}
"""Configuration for `logging.config`: all records, including gunicorn's, are written with `JsonFormatter`."""


def configure() -> None:
    """Apply `LOGGING_CONFIG`, unless gunicorn or another host process has already configured logging."""
    if not logging.getLogger().handlers:
        logging.config.dictConfig(LOGGING_CONFIG)


@contextmanager
def bind_fields(**fields: Any) -> Iterator[None]:
    """Add these fields to each line that the current thread or task logs within the block."""
    token = BOUND_FIELDS.set({**BOUND_FIELDS.get(), **fields})
    try:
        yield
    finally:
        BOUND_FIELDS.reset(token)


def parse_log_line(line: str) -> dict[str, Any] | None:
    """Parse a JSON log line; return None for other text, which a child process may write to the same output."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "msg" in entry else None


def log(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write a log line for the local delivery."""
    LOGGER.log(level, message, extra={"fields": fields})
