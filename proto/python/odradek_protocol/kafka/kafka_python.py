"""The part of kafka-python that the messages come from, `kafka.protocol`, without kafka-python's clients.

`kafka/__init__.py` imports all clients, which takes 60 ms of CPU of each start of a broker. So `kafka` is made a
package whose `__init__` has not run; it runs when somebody asks for one of its names, for example a client in the same
process.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

VERSION: Final = "3.0.12"


def _package_before_init() -> ModuleType:
    spec = find_spec("kafka")
    assert spec is not None, "kafka-python is not installed"
    loader, package = spec.loader, module_from_spec(spec)
    assert loader is not None, spec

    def run_init(name: str) -> Any:  # Any, because a name of the package may be anything
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = run_init
    return package


if "kafka" not in sys.modules:
    sys.modules["kafka"] = _package_before_init()
_found: Final = import_module("kafka.version").__version__
assert _found == VERSION, f"kafka-python is at version {_found}, not {VERSION}"

Message = import_module("kafka.protocol.api_message").ApiMessage
Struct = import_module("kafka.protocol.data_container").DataContainer
response_classes: Final[dict[Any, Any]] = import_module(
    "kafka.protocol.api_header"
).ResponseClassRegistry._response_class_registry
"""The response class of each API, by which kafka-python's own clients decode."""
codecs: Final = import_module("kafka.protocol.schemas.fields.codecs")
_MODULES: Final = tuple(
    import_module(f"kafka.protocol.{name}")
    for name in ("admin", "consumer", "metadata", "producer", "sasl")
)


def message_class(name: str) -> Any:
    """Return kafka-python's class of the message `name`."""
    return next(getattr(module, name) for module in _MODULES if hasattr(module, name))
