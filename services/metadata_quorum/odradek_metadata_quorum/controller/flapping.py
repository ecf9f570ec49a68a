"""Brokers that die and come back again and again.

One that was fenced twice within a minute is unfenced with a growing delay, and gets preferred
leaderships back only after a minute of calm: each of its deaths moves leaders, and so each return.
"""

from __future__ import annotations

from typing import Final

from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import BrokerId

_FIRST_DELAY_MS: Final = 1_000


def note_fencing(work: Workspace, broker_id: BrokerId) -> None:
    """A broker is fenced now because it died, or seemed to."""
    memory = work.memory(broker_id)
    since = work.now_ms - work.settings.flap_window_ms
    memory.fenced_at_ms = [*[at for at in memory.fenced_at_ms if at > since][-15:], work.now_ms]


def unfence_delay_ms(work: Workspace, broker_id: BrokerId) -> int:
    """0, 1, 2, 4 ... s for the first, second, third, fourth fencing within the window."""
    since = work.now_ms - work.settings.flap_window_ms
    times = sum(at > since for at in work.memory(broker_id).fenced_at_ms)
    if times < 2:
        return 0
    return min(_FIRST_DELAY_MS << (times - 2), work.settings.flap_delay_ms_max)


def is_calm(work: Workspace, broker_id: BrokerId) -> bool:
    """Whether a broker has not flapped lately: only then it gets preferred leaderships back."""
    since = work.now_ms - work.settings.flap_window_ms
    return sum(at > since for at in work.memory(broker_id).fenced_at_ms) < 2
