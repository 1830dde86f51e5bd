"""The web console: views, templates and static files."""
