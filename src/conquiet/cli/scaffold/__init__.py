"""``conquiet new``: small projects that pass their own tests."""
