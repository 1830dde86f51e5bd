"""Tests for the node conditions that describe a maintenance."""
