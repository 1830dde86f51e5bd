"""The same drains where KubeVirt's own controllers are at work, and ours is passive (DRN-10)."""
