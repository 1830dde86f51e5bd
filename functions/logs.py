"""Log lines as JSON objects on standard error, one a line (KNM-5, C31)."""

from __future__ import annotations

import json
import logging


class JsonLines(logging.Formatter):
    """`level`, `ts` (epoch seconds), `logger`, `msg`, and the record's own `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object without line breaks."""
        line = {"level": record.levelname.lower(), "ts": record.created, "logger": record.name}
        line |= {"msg": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure() -> None:
    """Send all records through `JsonLines`, once."""
    root = logging.getLogger()
    if any(isinstance(handler.formatter, JsonLines) for handler in root.handlers):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
