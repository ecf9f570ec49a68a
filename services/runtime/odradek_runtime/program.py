"""What the `__main__` of every service does between its command line and its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NoReturn, Protocol, TypeVar

from odradek_runtime.arguments import Arguments
from odradek_runtime.lifecycle import EXIT_USAGE, StopRequest, run_process
from odradek_runtime.logs import configure_logs
from odradek_runtime.open_files import raise_open_files_limit
from odradek_runtime.settings import SettingsError, load_settings

# gRPC's C core writes lines of its own to stderr, between the JSON events. Read when grpc is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


_UMASK: Final = 0o027
"""Files and directories that a service makes are its user's and group's: segments hold everybody's records."""


class ProcessSettings(Protocol):
    """Those of any service."""

    @property
    def log_level(self) -> str: ...


S = TypeVar("S", bound=ProcessSettings)
Run = Callable[[StopRequest], Coroutine[Any, Any, None]]


def run_program(
    program: str,
    arguments: Arguments,
    settings_class: type[S],
    *,
    env_prefix: str,
    log_fields: Callable[[S], Mapping[str, object]],
    make: Callable[[S], Run],
    refusals: tuple[type[Exception], ...] = (),
) -> int:
    """Read the settings, make the process and run it; the exit status.

    `log_fields` go with every event that is logged. What `make` refuses, by a SettingsError or one
    of `refusals`, is told in a line, and nothing was started.
    """
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
        configure_logs(level=settings.log_level, bound=log_fields(settings))
        run = make(settings)
    except refused as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_USAGE
    return run_process(run, program=program, exit_with_parent=arguments.exit_with_parent)


def exit_at_once(status: int) -> NoReturn:
    """End although threads are left. All that must be closed is closed; a thread that still waits
    for the disk, or one of gRPC's, may keep the interpreter from its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
