"""The application window: its pages, its header, and what steers a run."""
