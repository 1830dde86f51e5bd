"""The web console: pages, templates and static files."""
