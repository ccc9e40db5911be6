"""The training process of gradacc, and what its readers share with it. Never imports Qt."""

__version__ = "0.1.0"
