"""Everything about vLLM."""
