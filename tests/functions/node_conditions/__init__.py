"""Tests for the step that publishes conditions on nodes."""
