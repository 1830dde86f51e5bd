"""Where journals are, on each of the databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgresql import PostgreSQL


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty journal is, on each of the databases."""
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.database()
