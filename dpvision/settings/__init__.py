"""Settings of training runs and releases, recipes, and plans computed from public numbers."""
