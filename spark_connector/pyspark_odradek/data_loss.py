"""What to do when records that should be read are gone: fail the query, or say so and go on."""

from __future__ import annotations

import logging
from typing import Final

_log = logging.getLogger(__name__)

_LOST: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the data"
    " was aged out by Kafka or the topic may have been deleted before all the data in the topic was"
    " processed."
)
_DO_NOT_FAIL: Final = (
    " If you don't want your streaming query to fail on such cases, set the source option"
    " failOnDataLoss to false."
)
_DO_FAIL: Final = (
    " If you want your streaming query to fail on such cases, set the source option"
    ' "failOnDataLoss" to "true".'
)


class DataLoss(RuntimeError):
    """Records that should have been read are no longer there."""


def report_data_loss(reason: str, *, is_fatal: bool) -> None:
    """Raise DataLoss, or log a warning, as option failOnDataLoss says."""
    if is_fatal:
        raise DataLoss(f"{_LOST}{_DO_NOT_FAIL} Reason: {reason}")
    _log.warning("%s %s%s", reason, _LOST, _DO_FAIL)
