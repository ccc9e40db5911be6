"""The Verify page: runs the equivalence certificate beside the window, and shows what it says."""
