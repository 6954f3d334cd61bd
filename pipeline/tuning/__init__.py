"""FlashInfer tactics: a file of them, and the child process that times them."""
