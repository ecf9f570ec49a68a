"""Lines of the audit log about refusals: each kind at a rate, the rest as a number, and nothing of any length.

Who is refused a thousand things within a moment fills no disk with it, and cannot hide a refusal
behind a thousand others either: the next line that is written says how many were not.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

TEXT_CHARACTERS_MAX: Final = 256
LINES_BURST: Final = 100
LINES_PER_S: Final = 10.0
REPEATED_AFTER_S: Final = 60.0
OWNERS_MAX: Final = 4096


def shortened(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """The text as a log line or a key may hold it; what is cut is told by its length."""
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}... ({len(text)} characters)"


class _Lines:
    __slots__ = ("at_s", "entries", "left", "unwritten")

    def __init__(self, now_s: float) -> None:
        self.at_s = now_s
        self.left: float = LINES_BURST
        self.unwritten = 0
        self.entries: dict[int, float] = {}  # hash of what was written, and when


class RefusalLines:
    """Which refusals are written, by owner (`shares.owner_of`).

    Keeps hashes, so what an owner costs does not depend on what it asked for: at most
    `LINES_BURST` entries each, of `OWNERS_MAX` owners.
    """

    def __init__(self) -> None:
        self._owners: dict[str, _Lines] = {}

    def admit(self, owner: str, entry: Hashable, now_s: float) -> int | None:
        """Whether a refusal is to be written: None if not, else how many were not written before.

        The same refusal again within a minute is not written, and not counted as unwritten.
        """
        owner = shortened(owner)
        lines = self._owners.get(owner)
        if lines is None:
            if len(self._owners) >= OWNERS_MAX:
                del self._owners[next(iter(self._owners))]
            lines = self._owners[owner] = _Lines(now_s)
        key = hash(entry)
        written_at_s = lines.entries.get(key)
        if written_at_s is not None and now_s - written_at_s < REPEATED_AFTER_S:
            return None
        lines.left = min(LINES_BURST, lines.left + (now_s - lines.at_s) * LINES_PER_S)
        lines.at_s = now_s
        if lines.left < 1:
            lines.unwritten += 1
            return None
        lines.left -= 1
        lines.entries.pop(key, None)
        if len(lines.entries) >= LINES_BURST:
            del lines.entries[next(iter(lines.entries))]
        lines.entries[key] = now_s
        unwritten, lines.unwritten = lines.unwritten, 0
        return unwritten

    def take_unwritten(self, now_s: float) -> list[tuple[str, int]]:
        """Owners with refusals that no line told of, and how many; they count as told now.

        Only once an owner's rate has room again: during a flood one number grows.
        """
        found = [
            (owner, one.unwritten)
            for owner, one in self._owners.items()
            if one.unwritten and one.left + (now_s - one.at_s) * LINES_PER_S >= LINES_PER_S
        ]
        for owner, _ in found:
            self._owners[owner].unwritten = 0
        return found
