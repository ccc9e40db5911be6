"""The New-run page: a form built from the configuration's own types, and the recipes it reads and writes."""
