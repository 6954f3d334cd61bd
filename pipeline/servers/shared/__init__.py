"""What the servers have in common: flags, problems, shards, and asking an installed server on the virtual GPU."""
