"""A run's newest checkpoint, asked by a person: answers, pictures, and files for other programs."""
