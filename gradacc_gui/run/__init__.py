"""One run as the window shows it: its facts, requests and figures. Data only; no Qt."""
