"""Preheat: derive, compile and prove complete the kernel caches that an LLM server starts from."""
