"""Code that the `__main__` modules of all services share: command line, settings, memory allocator, exit status."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar

from odradek_runtime.lifecycle import EXIT_USAGE, StopRequest, run_process
from odradek_runtime.logs import configure_logs
from odradek_runtime.open_files import raise_open_files_limit
from odradek_runtime.settings import SettingsError, load_settings, specs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The parsed command line of a service. `assignments` has the values of `--set`, each as `name=value`."""

    config_file: Path | None
    assignments: tuple[str, ...]
    is_check: bool
    lists_settings: bool
    exit_with_parent: bool
    insecure: bool
    processes: int = 1
    prints_plan: bool = False


def parse_arguments(
    program: str,
    argv: Sequence[str] | None = None,
    *,
    settings_help: Callable[[], str],
    runs_many: bool = False,
) -> Arguments:
    """Parse the command line. If it is wrong, print the usage and exit with status 2.

    `--help` prints `settings_help()` after the options. `runs_many` adds the options of a program of which the command
    `odradek` can run several processes: `--processes`, `--status-port` and the internal `--plan`. Standard streams
    that are closed are opened first (`open_standard_streams`).
    """
    open_standard_streams()
    parser = argparse.ArgumentParser(prog=program, add_help=False)
    parser.add_argument(
        "-h", "--help", action="store_true", help="show these options and all settings"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read settings from this file, one name=value per line",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set one setting; overrides the file (repeatable)",
    )
    parser.add_argument(
        "--check", action="store_true", help="check the settings, report errors, and exit"
    )
    # `odradek config import` runs this option, because it must not import a service's code.
    parser.add_argument("--list-settings", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop when standard input reaches end of file, as it does when the parent process exits",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="allow other machines to connect without TLS and authentication: everybody on the network may then"
        " read and write",
    )
    if runs_many:
        parser.add_argument(
            "--processes",
            type=int,
            default=1,
            metavar="N",
            help="run and supervise N brokers on this host, with ids, ports and directories derived from the settings",
        )
        parser.add_argument(
            "--status-port",
            metavar="PORT",
            help="with --processes: serve /livez and /readyz for all N brokers together, on this port of metrics.host",
        )
        parser.add_argument("--plan", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(argv)
    processes, prints_plan = (parsed.processes, parsed.plan) if runs_many else (1, False)
    if not prints_plan and (processes != 1 or (runs_many and parsed.status_port is not None)):
        parser.error(f"--processes and --status-port work only with the command `{program}`")
    if parsed.help:
        example = f"Example: {program} --config FILE --set log.level=DEBUG"
        _print_page(f"{parser.format_help()}\n{example}\n\n{settings_help()}")
        parser.exit()
    return Arguments(
        config_file=parsed.config,
        assignments=tuple(parsed.set),
        is_check=parsed.check,
        lists_settings=parsed.list_settings,
        exit_with_parent=parsed.exit_with_parent,
        insecure=parsed.insecure,
        processes=processes,
        prints_plan=prints_plan,
    )


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Disable the garbage collector while the modules of a service are imported.

    Otherwise the collector would traverse all existing objects repeatedly, although modules live as long as the
    process. Later collections skip the objects of the modules, too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def open_standard_streams() -> None:
    """Open /dev/null for each standard stream (descriptors 0 to 2) that was closed when the process was started.

    Otherwise the next opened file, such as a segment of a log, could get descriptor 2. Text that C code writes to
    standard error would then be written into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the new descriptor gets the lowest free number
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w", closefd=False))


# Without this variable, gRPC's C core would write its own lines to stderr, between the JSON events. gRPC reads the
# variable when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


_UMASK: Final = 0o027
"""Only the user and group of a service may read its files, because segments contain the records of all clients."""
_M_TRIM_THRESHOLD: Final = -1  # the value of this constant in malloc.h
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
KEPT_BYTES_MAX: Final = 32 << 20
OWN_MAPPING_BYTES_MIN: Final = 16 << 20
GROWTH_BYTES: Final = 4 << 20


class ProcessSettings(Protocol):
    """The settings that `run_program` itself reads. The settings of every service have them."""

    @property
    def log_level(self) -> str: ...

    @property
    def log_format(self) -> str: ...


S = TypeVar("S", bound=ProcessSettings)
Run = Callable[[StopRequest], Coroutine[Any, Any, None]]


def _print_page(text: str) -> None:
    """Print a long text. It is no error if the reader of standard output exits before the end, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_program(
    program: str,
    arguments: Arguments,
    settings_class: type[S],
    *,
    env_prefix: str,
    log_fields: Callable[[S], Mapping[str, object]],
    make: Callable[[S], Run],
    plan: Callable[[S], object] | None = None,
    refusals: tuple[type[Exception], ...] = (),
) -> int:
    """Read the settings of a service, run it until it stops, and return the exit status.

    `make` creates the service from its settings. If `make` raises SettingsError or one of `refusals`, the error is
    printed and nothing is started. `log_fields` returns fields that are added to every log event. `plan` returns an
    object that `--plan` prints as JSON.
    """
    if arguments.lists_settings:
        names = {name: list(spec.aliases) for name, (_, spec) in specs_of(settings_class).items()}
        print(json.dumps(names))
        return 0
    raise_open_files_limit()
    os.umask(_UMASK)
    refused: tuple[type[Exception], ...] = (SettingsError, *refusals)
    try:
        settings = load_settings(
            settings_class,
            env=os.environ,
            env_prefix=env_prefix,
            config_file=arguments.config_file,
            assignments=arguments.assignments,
        )
        if plan is not None and arguments.prints_plan:
            print(json.dumps(plan(settings)))
            return 0
        configure_logs(
            level=settings.log_level, log_format=settings.log_format, bound=log_fields(settings)
        )
        run = make(settings)
    except refused as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_USAGE
    if arguments.is_check:
        print(f"{program}: the settings are valid")
        return 0
    return run_process(run, program=program, exit_with_parent=arguments.exit_with_parent)


def exit_at_once(status: int) -> NoReturn:
    """End the process even if threads still run. The caller has closed everything that must be closed.

    A normal exit could hang, because the interpreter waits for threads: for example, for a thread that waits for a
    disk, or for a thread of gRPC.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def keep_freed_memory() -> bool:
    """Let the C allocator keep up to `KEPT_BYTES_MAX` of freed memory. Return False if the C library is not glibc.

    A response to a fetch or a replication message is a block of about 1 MiB that is allocated, sent and freed. By
    default, glibc returns such a block to the kernel and requests a new one, which the kernel zeroes page by page.
    Measured on fetches over gRPC, that took more than half of a broker's CPU time. Blocks above
    `OWN_MAPPING_BYTES_MIN` still get mappings of their own. All threads share one arena, because otherwise each disk
    thread would keep as much freed memory again. Call this before threads start. A library must not call it, because
    it changes the whole process.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    set_option.argtypes = (ctypes.c_int, ctypes.c_int)
    set_option.restype = ctypes.c_int
    options = {
        _M_TRIM_THRESHOLD: KEPT_BYTES_MAX,
        _M_MMAP_THRESHOLD: OWN_MAPPING_BYTES_MIN,
        _M_TOP_PAD: GROWTH_BYTES,
        _M_ARENA_MAX: 1,
    }
    return all(set_option(option, value) == 1 for option, value in options.items())
