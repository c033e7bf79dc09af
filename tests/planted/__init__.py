"""Bugs planted on purpose: the suite's own check must see each of them."""
