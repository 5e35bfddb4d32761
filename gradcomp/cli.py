"""The command `gradcomp`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gradcomp._version import __version__
from gradcomp.errors import GradcompError, ModelError

REQUIRABLE = ("native", "tensorflow", "horovod")
BANDWIDTHS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}  # bits a second, as tc has them
LATENCIES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


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
    _add_doctor(commands)
    _add_plan(commands)
    options = parser.parse_args(arguments)
    # Not at the top: --version and --help of the other command need none of it.
    if options.command == "doctor":
        from gradcomp.doctor import run

        return run({"native", *options.require})
    return _plan(options)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from gradcomp.cost import ASSUMPTIONS

    plan = commands.add_parser(
        "plan",
        help="predict what a step's exchange of gradients takes, by codec and route",
        description="Predicts, without a network, what the exchange of a model's gradients takes in"
        " one step: by codec and route the bytes that a rank sends, the time on the link and in "
        "kernels, the speed-up over uncompressed float32, and the bandwidths at which it wins.",
        epilog=ASSUMPTIONS,
    )
    plan.add_argument(
        "--model",
        type=_model,
        required=True,
        metavar="NAME|FILE.keras",
        help="resnet50, bert-base or a file that model.save wrote",
    )
    plan.add_argument("--ranks", type=_ranks, required=True, metavar="N", help="at least 2")
    plan.add_argument(
        "--bandwidth",
        type=_bandwidth,
        required=True,
        metavar="RATE",
        help="bits a second that a rank can send, such as 25gbit or 100mbit",
    )
    plan.add_argument(
        "--latency",
        type=_latency,
        required=True,
        metavar="TIME",
        help="from one rank to another, such as 20us or 1ms",
    )
    plan.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="write a picture of the time with 2 to 1,024 ranks too; needs matplotlib",
    )


def _plan(options: argparse.Namespace) -> int:
    from gradcomp.cost import Link
    from gradcomp.prediction import run

    (rate, bits), (delay, seconds) = options.bandwidth, options.latency
    link = Link(bits / 8, seconds)
    try:
        return run(options.model, options.ranks, link, f"{rate}, {delay}", options.plot)
    except (GradcompError, OSError) as error:
        print(f"gradcomp plan: {error}", file=sys.stderr)
        return 1


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in REQUIRABLE:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(REQUIRABLE)}")
    return names


def _model(text: str) -> str:
    from gradcomp.models import checked_model

    try:
        return checked_model(text)
    except ModelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least 2")
    return int(text)


def _bandwidth(text: str) -> tuple[str, float]:
    """The text, and its bits a second."""
    bits = _quantity(text, BANDWIDTHS)
    if not bits:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no bandwidth: give a number above 0 and one of {', '.join(BANDWIDTHS)}, "
            "such as 25gbit"
        )
    return text, bits


def _latency(text: str) -> tuple[str, float]:
    """The text, and its seconds."""
    seconds = _quantity(text, LATENCIES)
    if seconds is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no latency: give a number and one of {', '.join(LATENCIES)}, such as 20us"
        )
    return text, seconds


def _quantity(text: str, units: dict[str, float]) -> float | None:
    """A number directly followed by a unit, in the units' base; None for anything else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", text.strip().lower())
    if found is None or found.group(2) not in units:
        return None
    return float(found.group(1)) * units[found.group(2)]
