"""Modules that run inside the server's own Python; they import nothing else of this project."""
