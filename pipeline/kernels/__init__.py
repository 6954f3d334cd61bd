"""What a dummy forward launches: one protocol, one file for each device."""
