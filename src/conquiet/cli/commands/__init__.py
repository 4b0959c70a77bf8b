"""One module per command or group of commands: it parses options, calls ``management`` and prints."""
