"""Runs on other machines, over the user's own ssh: mirrored here, started and steered there. No Qt."""
