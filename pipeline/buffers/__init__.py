"""One allocation for a whole run: layout, slots, guards, and the decode buffer set that lives in it."""
