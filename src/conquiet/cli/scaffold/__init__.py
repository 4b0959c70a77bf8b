"""``conquiet new``: small projects with passing tests."""
