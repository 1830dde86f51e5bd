"""Builds `kubectl maintenance` for workstations: the wheel, and the archives that krew installs."""
