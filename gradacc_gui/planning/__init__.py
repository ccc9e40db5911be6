"""What fits: the plan of a recipe beside its form."""
