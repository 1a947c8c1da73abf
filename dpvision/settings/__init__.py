"""What can be asked for: settings of training runs and releases, recipes, and plans from public numbers."""
