"""Users who are there, as models of those who are not: whoever logs in is to notice no difference.

Which user a name imitates is drawn by the name, on a ring of all users' names (consistent hashing): the same one on
every broker and after a restart, and hardly ever another one when users come and go. It is found as fast as a user who
is there, for whom it is looked up as well.
"""

from __future__ import annotations

import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final

from odradek_protocol.metadata.records import ScramMechanism, UserScramCredential

Known = Mapping[tuple[str, ScramMechanism], UserScramCredential]
_Ring = list[tuple[int, tuple[str, ScramMechanism]]]
_LOOK_AGAIN_S: Final = 1.0  # one user may have come for another that went


class Imitations:
    """Keeps the ring of the credentials that it was shown last."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._known: Known = {}
        self._count = 0
        self._made_at_s = 0.0
        self._rings: dict[ScramMechanism | None, _Ring] = {}

    def model_of(
        self, user: str, known: Known, kind: ScramMechanism | None = None
    ) -> UserScramCredential | None:
        """A credential of that mechanism, or of any; None when there is none."""
        now_s = self._clock_s()
        is_same = known is self._known and len(known) == self._count
        if not is_same or now_s - self._made_at_s > _LOOK_AGAIN_S:
            self._make(known, now_s)
        ring = self._rings.get(kind, [])
        at = bisect_left(ring, (zlib.crc32(user.encode()), ("", ScramMechanism.SHA_256)))
        for step in range(len(ring)):
            found = known.get(ring[(at + step) % len(ring)][1])
            if found is not None:  # it may have gone a moment ago
                return found
        return None

    def _make(self, known: Known, now_s: float) -> None:
        self._known, self._count, self._made_at_s = known, len(known), now_s
        rings: dict[ScramMechanism | None, _Ring] = {None: []}
        for one in known.values():
            entry = (zlib.crc32(one.user.encode()), (one.user, one.mechanism))
            rings[None].append(entry)
            rings.setdefault(one.mechanism, []).append(entry)
        self._rings = {kind: sorted(ring) for kind, ring in rings.items()}
