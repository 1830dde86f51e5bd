"""Builds `kubectl maintenance` for users' machines: the wheel, and the archives that krew installs."""
