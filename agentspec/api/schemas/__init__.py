"""Request and response bodies, one family a file."""
