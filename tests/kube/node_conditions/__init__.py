"""Tests for the rules of the lifecycle conditions on nodes."""
