"""Tests for the announcements and notifications about blocked drains, on plain dicts."""
