"""Rules of NodeMaintenance objects, pure; `lookup` alone uses the door."""
