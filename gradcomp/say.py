"""What gradcomp tells while it works: lines for the logger `gradcomp`."""

from __future__ import annotations

import logging


def say(text: str) -> None:
    """Logs a line at the level INFO, which is shown unless the program has set up logging."""
    logger = logging.getLogger("gradcomp")
    if not logger.hasHandlers():  # nobody has set up logging: Python itself would drop the line
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logger.info(text)
