"""``conquiet dev``: an application with everything it needs, for development."""
