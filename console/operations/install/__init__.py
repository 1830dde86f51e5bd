"""Reports why an install makes no progress: its objects, and which of them are not ready."""
