"""The check of a recipe beside its form: its first optimizer step, and what stops or doubts a start."""
