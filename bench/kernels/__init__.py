"""Times every CPU kernel as multiples of what memory allows, beside what a user has today."""
