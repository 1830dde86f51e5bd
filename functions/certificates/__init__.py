"""The step `renew-certificates`, and its supporting modules."""
