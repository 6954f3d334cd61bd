"""What a run leaves for the server beside the caches: what to export, and what is covered by which versions."""
