"""What OpenShift has and a plain cluster has not, as far as the upgrade mutex needs it."""
