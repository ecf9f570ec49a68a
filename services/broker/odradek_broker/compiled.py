"""Base classes for modules that mypyc may compile (`proto/compile_modules.py`), so that the modules behave the same
when they are compiled.

In a compiled module, a class whose metaclass is not `type` loses the keywords of its `class` statement: `class
Slot(Struct, eq=False)` would lose `eq=False`. A struct inherits the options of its base class, so the structs of these
modules have one of the bases below. (`kw_only` is not inherited; in these modules only the type checker enforces it.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_attributes):
        """Replace the decorator of mypy_extensions, which only the compiler reads."""
        return lambda cls: cls


class Value(Struct, frozen=True, gc=False):
    """An immutable value that holds no reference cycle."""


class Mutable(Struct, eq=False, gc=False):
    """An object whose owner changes it, and which the garbage collector does not track."""


class TrackedMutable(Struct, eq=False):
    """An object whose owner changes it, and which may be a part of a reference cycle."""
