"""Tests for `publish-conditions`, which writes the conditions of a maintenance to its node."""
