"""Simulated controllers of OpenShift and KubeVirt, which run as threads or as processes."""
