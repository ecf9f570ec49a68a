"""Hypothesis strategies for metadata records and sequences of them."""

from __future__ import annotations

import types
from enum import IntEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from odradek_protocol.metadata.records import RECORD_TYPES, MetadataBatch, MetadataRecord

_SCALARS: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    float: st.floats(allow_nan=False),
}


def _values(hint: Any) -> st.SearchStrategy[Any]:
    hint = getattr(hint, "__supertype__", hint)
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        return st.none() | _values(inner)
    if get_origin(hint) is tuple:
        args = get_args(hint)
        if args[-1] is Ellipsis:
            return st.lists(_values(args[0]), max_size=4).map(tuple)
        return st.tuples(*map(_values, args))
    if issubclass(hint, msgspec.Struct):
        return _instances(hint)
    if issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    return _SCALARS[hint]


def _instances(cls: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{name: _values(hints[name]) for name in cls.__struct_fields__})


def records() -> st.SearchStrategy[MetadataRecord]:
    """Return a strategy for any record with any values of the right types, even if they make no
    sense.
    """
    return st.one_of([_instances(cls) for cls in RECORD_TYPES])


def batches() -> st.SearchStrategy[MetadataBatch]:
    """Return a strategy for any batch."""
    return st.builds(
        MetadataBatch,
        controller_epoch=st.integers(0, 2**31 - 1),
        records=st.lists(records(), max_size=8).map(tuple),
    )
