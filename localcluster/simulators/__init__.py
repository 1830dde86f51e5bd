"""Simulators of OpenShift's and KubeVirt's controllers, which run as threads or as processes."""
