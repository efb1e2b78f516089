"""Experiments: a specification, its run, its folder; many of them as a sweep."""
