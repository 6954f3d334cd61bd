"""Everything about SGLang."""
