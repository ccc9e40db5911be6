"""What a recipe will do, before anything starts: its first optimizer step, and checks with their cost."""
