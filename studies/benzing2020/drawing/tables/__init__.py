"""Tables of the report, and files of their numbers."""
