"""Tests for drains on a cluster with KubeVirt's controllers, where the product itself migrates no VMs (DRN-10)."""
