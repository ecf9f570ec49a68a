"""What the modules that mypyc may compile (`proto/compile_modules.py`) need to behave the same in both forms.

A compiled module makes a class of another metaclass without the keywords of its `class` statement: a struct of
`class Slot(Struct, eq=False)` would lose `eq=False` there. A struct inherits the options of its base, so in those
modules a struct has one of the bases below. (`kw_only` is not inherited, and only the type checker enforces it.)
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
    """An object whose owner changes it, and which the garbage collector need not look at."""


class TrackedMutable(Struct, eq=False):
    """An object whose owner changes it, and which may be a part of a reference cycle."""
