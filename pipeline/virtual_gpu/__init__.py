"""A CUDA runtime and driver that answer questions about a target GPU and launch nothing."""
