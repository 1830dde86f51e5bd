"""What happened, kept: every event and every attempt, in SQLite or PostgreSQL."""
