"""Feature levels: the formats and features that a cluster uses (KIP-584).

Each broker and controller registers the range of levels of each feature that its program supports. A feature that is
missing in a registration is not supported, which means level 0. A command raises the level of a feature only if every
registered broker and every voter supports the new level, so that no process is excluded.

`metadata.version` determines which records and which of their fields may be written (`codec`):

    1  the records of the first release
    2  the metadata log has an incarnation id; controllers register; registrations have lowest levels of features
    3  registrations of brokers and controllers have the name of their host

`metadata.version` is never lowered, because the records of a level stay in the log. Programs of level 1 registered no
features at all, so a registration without features means `UNREGISTERED_LEVELS`. These programs also wrote
`transaction.version` 2 into new clusters, although they did not support transactions. So the level of
`transaction.version` counts only from `metadata.version` 2 on, and raising `metadata.version` to 2 resets it.

`transaction.version` is 0 (no transactions), 1 (transactions) or 2 (KIP-890). With level 2, clients that support it get
a new producer epoch with each transaction, and partition leaders register the partitions that a transaction writes to.
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

# The highest levels that a broker or controller supports if it registers no features. Such a process has a release that
# knows only metadata.version 1.
UNREGISTERED_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {GROUP_VERSION: 1, METADATA_VERSION: 1}
)

INITIAL_LEVELS: Final = (
    (GROUP_VERSION, 1),
    (METADATA_VERSION, METADATA_VERSION_MAX),
    (TRANSACTION_VERSION, 2),
)

FeatureLevels = tuple[tuple[str, int], ...]  # (name, level), sorted by name


# The highest levels of this release, as a registration contains them. A feature whose level is 0 is missing.
OWN_MAXIMA: Final[FeatureLevels] = tuple(
    (name, highest) for name, (_, highest) in sorted(SUPPORTED_FEATURES.items()) if highest > 0
)
OWN_MINIMA: Final[FeatureLevels] = tuple(
    (name, lowest) for name, (lowest, _) in sorted(SUPPORTED_FEATURES.items()) if lowest > 0
)


def highest_supported(registered: Sequence[tuple[str, int]], name: str) -> int:
    """Return the highest level of the feature `name` that a broker or controller supports.

    `registered` has the highest levels of its registration.
    """
    levels = dict(registered) if registered else UNREGISTERED_LEVELS
    return levels.get(name, 0)
