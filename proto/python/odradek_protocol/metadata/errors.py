"""What is wrong with metadata that cannot be read."""

from __future__ import annotations


class MetadataDecodeError(ValueError):
    """These bytes are not metadata of a form that this version reads."""


class NewerProgramNeeded(MetadataDecodeError):
    """The metadata is sound, but it uses what only a newer program knows. Nothing is damaged."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"a newer program is needed: {detail}. The metadata is sound; start the version of the"
            " program that the other members of the cluster run, or a later one"
        )
