"""Tests for the step that notifies the owners of workloads which block a drain."""
