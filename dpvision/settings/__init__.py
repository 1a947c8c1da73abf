"""What can be asked for: settings of trainings and releases, recipes, and plans from public numbers."""
