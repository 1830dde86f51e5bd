"""Tests for drains with KubeVirt's controllers installed: the product itself migrates no VMs (DRN-10)."""
