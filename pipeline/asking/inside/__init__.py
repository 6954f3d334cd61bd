"""What runs inside the server's own Python; it imports nothing else of this project."""
