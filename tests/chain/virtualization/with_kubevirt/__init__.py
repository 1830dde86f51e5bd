"""Tests of drains with KubeVirt's controllers installed: the product's own migration step is passive (DRN-10)."""
