"""``python -m conquiet.cli`` is ``conquiet``."""

from conquiet.cli import main

main()
