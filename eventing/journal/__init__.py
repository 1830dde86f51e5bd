"""The journal: records every event and every attempt in SQLite or PostgreSQL."""
