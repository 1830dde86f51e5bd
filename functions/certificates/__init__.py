"""The step that renews certificates, and its supporting modules."""
