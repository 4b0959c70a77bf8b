"""``conquiet dev``: run an application with its servers for development."""
