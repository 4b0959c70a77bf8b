"""One module per command (or family of commands): it parses, asks ``management`` and prints."""
