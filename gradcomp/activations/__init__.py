"""Keeps what forward leaves for backward in few bytes."""
