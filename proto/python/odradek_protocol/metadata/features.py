"""Feature levels: the formats and features that all members of a cluster have agreed to use (KIP-584).

A member registers, by feature, the range of levels that its program supports. A feature that is not
in the registration is not supported: level 0. A level is raised by command, and only when every
registered broker and every voter supports it, so that no member is excluded.

`metadata.version` says which records and which of their fields may be written (`codec`):

    1  the records of the first release
    2  the metadata log has an incarnation id; controllers register; registrations have minima
    3  registrations of brokers and controllers name their host

It never falls, because the records of a level stay in the log. Programs of level 1 registered no features
at all, and wrote `transaction.version` 2 into new clusters although they had no transactions. So an
empty registration stands for `UNREGISTERED_LEVELS`, and the level of `transaction.version` counts
only from `metadata.version` 2 on; raising to 2 resets it.

`transaction.version` is 0 (no transactions), 1 (transactions) or 2 (KIP-890: clients that know it get a new epoch with
each transaction, and leaders add the partitions that a transaction writes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

GROUP_VERSION: Final = "group.version"
METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"

METADATA_VERSION_MIN: Final = 1
METADATA_VERSION_WITH_IDENTITY: Final = 2
METADATA_VERSION_WITH_HOSTS: Final = 3
METADATA_VERSION_MAX: Final = 3

# The levels of each feature that this release supports, as (lowest, highest).
SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        GROUP_VERSION: (0, 1),
        METADATA_VERSION: (METADATA_VERSION_MIN, METADATA_VERSION_MAX),
        TRANSACTION_VERSION: (0, 2),
    }
)

# The levels of a broker or controller that registers no features: a release that knows only metadata.version 1.
UNREGISTERED_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {GROUP_VERSION: 1, METADATA_VERSION: 1}
)

INITIAL_LEVELS: Final = (
    (GROUP_VERSION, 1),
    (METADATA_VERSION, METADATA_VERSION_MAX),
    (TRANSACTION_VERSION, 2),
)

FeatureLevels = tuple[tuple[str, int], ...]  # (name, level), sorted by name


# The highest levels of this release as a registration lists them; level 0 is left out.
OWN_MAXIMA: Final[FeatureLevels] = tuple(
    (name, highest) for name, (_, highest) in sorted(SUPPORTED_FEATURES.items()) if highest > 0
)
OWN_MINIMA: Final[FeatureLevels] = tuple(
    (name, lowest) for name, (lowest, _) in sorted(SUPPORTED_FEATURES.items()) if lowest > 0
)


def highest_supported(registered: Sequence[tuple[str, int]], name: str) -> int:
    """Return the highest level of a feature that a member supports by its registration."""
    levels = dict(registered) if registered else UNREGISTERED_LEVELS
    return levels.get(name, 0)
