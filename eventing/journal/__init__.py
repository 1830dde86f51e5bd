"""The journal: every event and every attempt, recorded in SQLite or PostgreSQL."""
