"""Settings as people read them: one as it is written in a file, and all that a process takes."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING
from typing import Any, Final

from odradek_runtime.listeners import ListenerAddress, host_port
from odradek_runtime.settings import SettingSpec, specs_of

_COLUMNS: Final = 100


def settings_text(value: Any) -> str:
    """A setting's value as it would be written in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_element_text(one) for one in value)
    return str(value)


def settings_help(cls: type[Any], env_prefix: str) -> str:
    """Every setting of `cls`, by name: its default, what it means, what it may be."""
    lines = [
        f"settings: NAME=VALUE in the file and for --set; in the environment {env_prefix} and the name in",
        "capitals with _ for each dot. --set goes before the file, and the file before the environment.",
        "",
    ]
    for name, (field, spec) in sorted(specs_of(cls).items()):
        is_needed = field.default is MISSING
        lines.append(f"  {name}={'...' if is_needed else settings_text(field.default)}")
        lines += textwrap.wrap(
            " ".join([spec.doc, *_limits(spec, is_needed)]),
            _COLUMNS,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
        )
    return "\n".join(lines)


def _limits(spec: SettingSpec, is_needed: bool) -> list[str]:
    told = []
    if is_needed:
        told.append("Must be given.")
    if spec.bounds or spec.unit:
        told.append(f"In {spec.unit}." if not spec.bounds else f"{spec.bounds}.".capitalize())
    if spec.choices:
        told.append(f"One of {', '.join(one or 'nothing' for one in spec.choices)}.")
    if spec.aliases:
        told.append(f"Also {', '.join(spec.aliases)}.")
    return told


def _element_text(value: Any) -> str:
    if isinstance(value, ListenerAddress):
        return f"{value.name}://{value.authority}"
    if isinstance(value, tuple) and len(value) == 3:  # id, host, port
        return f"{value[0]}@{host_port(value[1], value[2])}"
    if isinstance(value, tuple):  # listener, protocol
        return ":".join(str(part) for part in value)
    return str(value)
