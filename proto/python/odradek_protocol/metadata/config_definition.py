"""What a config is: a name, a type, a range, a default and a sentence, and how its text is read.

Values are text on every wire and in every record, as in Kafka; `ConfigDefinition.parse` is the one
place that reads them. A value that does not fit is a `ConfigError` whose message names the config,
the value and what would fit.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

ConfigValue = bool | int | float | str | tuple[str, ...]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ConfigError(ValueError):
    """A config does not exist or does not take this value; the message is for people."""


class ConfigType(IntEnum):
    """How the text of a config is read: Kafka's numbers (DescribeConfigs)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from: Kafka's numbers (DescribeConfigs)."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5


_WHOLE_BOUNDS: Final = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}
_VALUE_CHARACTERS_MAX: Final = 32_767


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One config. `minimum` and `maximum` are inclusive; `choices` empty means any."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    broker_name: str | None = None  # of a topic config: its name as the cluster's default
    is_sensitive: bool = False
    is_cluster_wide: bool = False  # of a broker config: makes no sense for a single broker

    @property
    def default_name(self) -> str:
        """The name that the cluster's default of a topic config has."""
        return self.broker_name or self.name

    def parse(self, text: str) -> ConfigValue:
        """The value in this text; raises `ConfigError` naming config, value and what fits."""
        if len(text) > _VALUE_CHARACTERS_MAX:
            raise ConfigError(f"{self.name}: the value has {len(text)} characters, at most 32767")
        match self.type:
            case ConfigType.BOOLEAN:
                return self._boolean(text)
            case ConfigType.STRING | ConfigType.PASSWORD:
                return self._choice(text)
            case ConfigType.LIST:
                items = tuple(item.strip() for item in text.split(",") if item.strip())
                return tuple(self._choice(item) for item in items)
            case ConfigType.DOUBLE:
                return self._ranged(self._number(text))
            case _:
                return self._ranged(self._whole(text))

    def accepts(self) -> str:
        """What it takes, for people: `a whole number (LONG) from -1`."""
        match self.type:
            case ConfigType.BOOLEAN:
                return "true or false"
            case ConfigType.LIST if self.choices:
                return f"a comma-separated list of {' and '.join(self.choices)}"
            case ConfigType.STRING if self.choices:
                return f"one of {', '.join(self.choices)}"
            case ConfigType.STRING | ConfigType.PASSWORD | ConfigType.LIST:
                return "text"
        kind = "a number" if self.type is ConfigType.DOUBLE else "a whole number"
        low = "" if self.minimum is None else f" from {self.minimum:.15g}"
        high = "" if self.maximum is None else f" up to {self.maximum:.15g}"
        return f"{kind}{low}{high}"

    def _refuse(self, text: object) -> ConfigError:
        shown = "the value" if self.is_sensitive else repr(text)
        return ConfigError(f"{self.name}: {shown} is not {self.accepts()}")

    def _boolean(self, text: str) -> bool:
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise self._refuse(text)
        return word == "true"

    def _choice(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise self._refuse(text)
        return text

    def _whole(self, text: str) -> int:
        digits = text.strip()
        if not digits.removeprefix("-").isascii() or not digits.removeprefix("-").isdigit():
            raise self._refuse(text)
        low, high = _WHOLE_BOUNDS[self.type]
        if len(digits) > 20 or not low <= int(digits) <= high:
            raise ConfigError(f"{self.name}: {text!r} does not fit {self.type.name}")
        return int(digits)

    def _number(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise self._refuse(text) from None
        if not math.isfinite(number):
            raise self._refuse(text)
        return number

    def _ranged(self, number: int | float) -> int | float:
        too_low = self.minimum is not None and number < self.minimum
        if too_low or (self.maximum is not None and number > self.maximum):
            raise self._refuse(number)
        return number


def unknown_config(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that no config has, with the nearest one that exists."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"{name} is no {kind} config{hint}")
