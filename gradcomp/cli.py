"""The command `gradcomp`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gradcomp._version import __version__

REQUIRABLE = ("native", "tensorflow", "horovod")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0 if all is well, 1 if not, 2 for wrong usage.

    Args:
      arguments: the words after `gradcomp`; `sys.argv`'s by default.
    """
    parser = argparse.ArgumentParser(
        prog="gradcomp", description="Gradient compression for data-parallel TensorFlow training."
    )
    parser.add_argument("--version", action="version", version=f"gradcomp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    doctor = commands.add_parser(
        "doctor",
        help="show what is installed, what works, and the command that mends what does not",
        description="Shows what is installed, what each engine can do, what is wrong and the "
        "command that mends it. The exit status is 1 if anything required is missing or broken.",
    )
    doctor.add_argument(
        "--require",
        type=_names,
        default=[],
        metavar="NAME[,NAME]",
        help=f"what must work, of {', '.join(REQUIRABLE)}; `native`, the CPU kernels, always must",
    )
    options = parser.parse_args(arguments)

    from gradcomp.doctor import run  # not at the top: --version and --help need none of it

    return run({"native", *options.require})


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in REQUIRABLE:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(REQUIRABLE)}")
    return names
