"""Words and arithmetic that every room shares. Standard library only, no I/O."""
