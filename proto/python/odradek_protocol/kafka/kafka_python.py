"""Import kafka-python's message classes (`kafka.protocol`) without kafka-python's clients.

`kafka/__init__.py` imports all clients, which takes 60 ms of CPU time at each start of a broker. So this module puts a
package `kafka` into `sys.modules` whose `__init__` runs only when other code first reads one of its names, for example
to use a client in the same process.
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

    def run_init(name: str) -> Any:  # Any, because the package's names have values of any type
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = run_init
    return package


if "kafka" not in sys.modules:
    sys.modules["kafka"] = _package_before_init()
_installed: Final = import_module("kafka.version").__version__
assert _installed == VERSION, f"kafka-python is installed in version {_installed}, not {VERSION}"

Message = import_module("kafka.protocol.api_message").ApiMessage
Struct = import_module("kafka.protocol.data_container").DataContainer
response_classes: Final[dict[Any, Any]] = import_module(
    "kafka.protocol.api_header"
).ResponseClassRegistry._response_class_registry
"""The response class of each API, with which kafka-python's own clients decode responses."""
codecs: Final = import_module("kafka.protocol.schemas.fields.codecs")
_MODULES: Final = tuple(
    import_module(f"kafka.protocol.{name}")
    for name in ("admin", "consumer", "metadata", "producer", "sasl")
)


def message_class(name: str) -> Any:
    """Return kafka-python's class of a message, such as `MetadataRequest`."""
    return next(getattr(module, name) for module in _MODULES if hasattr(module, name))
