"""A local page on which a person goes through the suspect labels."""
