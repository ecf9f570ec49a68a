"""The command line that every service takes: a file, single settings, and how to end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """`--config FILE --set name=value ... [--exit-with-parent] [--insecure]`."""

    config_file: Path | None
    assignments: tuple[str, ...]
    exit_with_parent: bool
    insecure: bool


def parse_arguments(
    program: str, argv: Sequence[str] | None = None, *, settings_help: Callable[[], str]
) -> Arguments:
    """Read the command line; exits with status 2 and the usage if it is wrong.

    `--help` prints `settings_help()` after the options.
    """
    parser = argparse.ArgumentParser(prog=program, add_help=False)
    parser.add_argument(
        "-h", "--help", action="store_true", help="show these options, and every setting"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, name=value a line")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="one setting, wins"
    )
    parser.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop at end of file on standard input",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond loopback without TLS (everybody on the network may read and write)",
    )
    found = parser.parse_args(argv)
    if found.help:
        print(f"{parser.format_help()}\n{settings_help()}")
        parser.exit()
    return Arguments(
        config_file=found.config,
        assignments=tuple(found.set),
        exit_with_parent=found.exit_with_parent,
        insecure=found.insecure,
    )
