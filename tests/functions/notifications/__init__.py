"""Tests for `notify-owners`, which notifies the owners of workloads that block a drain."""
