"""Parameters in paths: their types, and what openapi.json says of them.

A name that no topic can have is a topic that there is not: 404, as for any other name that is not found. So is a
partition that is not a number; a negative one is for its route to refuse like any other partition that is not there.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Depends, Path, Request
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from odradek.errors import UnknownTopic
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import RestError
from odradek_gateway.rest.request_bodies import INT32_MAX, cluster_of

TOPIC_PATTERN: Final = r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$"
_topic_pattern = re.compile(TOPIC_PATTERN)
_whole: Final = re.compile("-?[0-9]{1,10}")


def _named_as_topics_are(name: str) -> str:
    if not _topic_pattern.fullmatch(name):
        raise UnknownTopic(f"there is no topic {name!r}: no topic can be so named")
    return name


def _whole_number(text: str) -> int:
    if not _whole.fullmatch(text) or abs(int(text)) > INT32_MAX:
        raise RestError(404, 404, f"there is no partition {text!r}: partitions have numbers")
    return int(text)


async def _cluster(request: Request) -> ClusterAccess:
    return cluster_of(request)  # async: FastAPI hands plain functions to a thread


Cluster = Annotated[ClusterAccess, Depends(_cluster)]
TopicName = Annotated[
    str,
    Path(),
    AfterValidator(_named_as_topics_are),
    WithJsonSchema({"type": "string", "pattern": TOPIC_PATTERN}),
]
PartitionId = Annotated[
    int,
    Path(),
    BeforeValidator(_whole_number),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": INT32_MAX}),
]
BrokerId = Annotated[int, Path(ge=0, le=INT32_MAX)]
GroupName = Annotated[str, Path(min_length=1, max_length=249)]
InstanceName = Annotated[str, Path(min_length=1, max_length=249)]
MemberId = Annotated[str, Path(min_length=1, max_length=1_024)]
ConfigName = Annotated[str, Path(min_length=1, max_length=249)]
