"""Changes of the configs of topics, brokers and groups at run time (KIP-339: set, delete, append, subtract).

Either all changes to one resource take effect, or none. A change of `min.insync.replicas` also changes the ELRs of the
affected partitions in the same batch (rule R18), so leaders adopt the new minimum and the new ELR together.

If the changes of the ELRs do not fit into one batch, each attempt to change the config first writes some of the new
ELRs, and the attempt that writes the last of them also changes the config. The order matters: with a lower minimum a
leader may acknowledge records that members of the old ELR lack, so these members must have left the ELR before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from odradek_metadata_quorum.controller.requests import GOOD, Outcome
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.config_definitions import ConfigType
from odradek_protocol.metadata.configs import (
    ConfigError,
    check_config,
    check_group_together,
    check_together,
    definition_of,
)
from odradek_protocol.metadata.image import ALL_BROKERS, PartitionState
from odradek_protocol.metadata.records import Config, ConfigResourceType

MIN_INSYNC_REPLICAS = "min.insync.replicas"
# The number is limited because every broker stores these configs, and a client may set configs of any group id.
GROUPS_WITH_CONFIGS_MAX = 10_000


class AlterOperation(IntEnum):
    """The operation of a change of a config, with Kafka's numbers. APPEND and SUBTRACT change the items of a list."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOperation:
    """One change of one config. `value` is None only for DELETE."""

    name: str
    operation: AlterOperation = AlterOperation.SET
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResource:
    """Changes of the configs of one resource. With `replaces_all`, all configs that are not named are deleted."""

    resource_type: ConfigResourceType
    resource_name: str
    operations: tuple[ConfigOperation, ...]
    replaces_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    """Changes of the configs of several resources: a client's whole request, or one piece of a large request.

    `repeated` has the resources that occur more than once in the whole request. `repeated` may be empty if this object
    is the whole request.
    """

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False
    repeated: frozenset[tuple[ConfigResourceType, str]] = frozenset()


class _Refused(Exception):
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.outcome = Outcome(error=error, message=message)


def alter_configs(work: Workspace, request: AlterConfigsRequest) -> tuple[Outcome, ...]:
    """Change the configs of each resource independently of the others. Outcomes are in the order of the request."""
    outcomes = []
    named = Counter((r.resource_type, r.resource_name) for r in request.resources)
    for resource in request.resources:
        try:
            key = (resource.resource_type, resource.resource_name)
            if named[key] > 1 or key in request.repeated:
                raise _Refused(
                    ErrorCode.INVALID_REQUEST, "the resource is named twice in this request"
                )
            values = _target(work, resource)
            if not request.validate_only:
                _write(work, resource, values)
            outcomes.append(GOOD)
        except _Refused as refused:
            outcomes.append(refused.outcome)
    return tuple(outcomes)


def _target(work: Workspace, resource: AlterConfigsResource) -> dict[str, str]:
    """Return the configs that are set for the resource after the changes. Raises _Refused."""
    _check_resource(work, resource)
    present = work.image.config_of(resource.resource_type, resource.resource_name)
    values = {} if resource.replaces_all else dict(present)
    names = [operation.name for operation in resource.operations]
    if len(set(names)) != len(names):
        raise _Refused(ErrorCode.INVALID_REQUEST, "a config is named twice in this request")
    try:
        for operation in resource.operations:
            _apply(resource, operation, values)
        for name in names:
            if name in values:
                check_config(resource.resource_type, name, values[name])
        if resource.resource_type is ConfigResourceType.TOPIC:
            check_together(values)
        if resource.resource_type is ConfigResourceType.GROUP:
            check_group_together(values)
    except ConfigError as error:
        raise _Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
    return values


def _check_resource(work: Workspace, resource: AlterConfigsResource) -> None:
    name = resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            if work.image.topic(name) is None:
                raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        case ConfigResourceType.BROKER:
            if name and not (name.isascii() and name.isdigit()):
                raise _Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"{name!r} is not a broker id: name the id of a broker, or an empty name for all brokers",
                )
            # The names are compared as text, because "01" is not the name of broker 1.
            if name and name not in map(str, work.image.brokers):
                raise _Refused(ErrorCode.INVALID_REQUEST, f"there is no broker {name}")
        case ConfigResourceType.GROUP:
            groups = sum(
                kind is ConfigResourceType.GROUP and bool(configs)
                for (kind, _), configs in work.image.configs.items()
            )
            is_new = not work.image.config_of(ConfigResourceType.GROUP, name)
            if not name:
                raise _Refused(ErrorCode.INVALID_REQUEST, "the name of the group is missing")
            if is_new and groups >= GROUPS_WITH_CONFIGS_MAX:
                raise _Refused(
                    ErrorCode.POLICY_VIOLATION,
                    f"{groups} groups have configs, which is the limit: delete the configs of another group first",
                )
        case _:
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                f"{resource.resource_type.name.lower()}s have no configs that can be changed at run time",
            )


def _apply(
    resource: AlterConfigsResource, operation: ConfigOperation, values: dict[str, str]
) -> None:
    name = operation.name
    if operation.operation is AlterOperation.DELETE:
        # The name is not checked, so that a config that only an older release knew can be deleted.
        values.pop(name, None)
        return
    definition = definition_of(resource.resource_type, name)
    if definition.is_cluster_wide and resource.resource_name and _is_broker(resource):
        raise ConfigError(
            f"{name} has one value for all brokers: set it for all brokers (an empty broker id), not for one broker"
        )
    if operation.value is None:
        raise ConfigError(f"the change of {name} has no value: give a value, or delete the config")
    if operation.operation is AlterOperation.SET:
        values[name] = operation.value
        return
    if definition.type is not ConfigType.LIST:
        raise ConfigError(
            f"{name} is not a list, so items cannot be added or removed: set or delete the config"
        )
    items = [item for item in values.get(name, definition.default).split(",") if item]
    given = [item.strip() for item in operation.value.split(",") if item.strip()]
    if operation.operation is AlterOperation.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    values[name] = ",".join(items)


def _is_broker(resource: AlterConfigsResource) -> bool:
    return resource.resource_type is ConfigResourceType.BROKER


def _write(work: Workspace, resource: AlterConfigsResource, values: dict[str, str]) -> None:
    present = dict(work.image.config_of(resource.resource_type, resource.resource_name))
    changed = sorted(
        name for name in present.keys() | values.keys() if present.get(name) != values.get(name)
    )
    if MIN_INSYNC_REPLICAS in changed:
        _settle_minimum(work, resource, values.get(MIN_INSYNC_REPLICAS))
    for name in changed:
        work.write(
            Config(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                name=name,
                value=values.get(name),
            )
        )


def _settle_minimum(work: Workspace, resource: AlterConfigsResource, value: str | None) -> None:
    """Write the changes of partitions that a new value of min.insync.replicas needs; None means that the config is
    deleted.

    If the changes do not fit into one batch, write some of them and raise _Refused.
    """
    changes = []
    for state in _concerned(work, resource):
        # A partition whose replicas are all in sync has an empty ELR with any minimum, so it need not change.
        if len(state.isr) < len(state.replicas):
            minimum = _minimum_after(work, resource, value, state)
            if (change := work.settled(state, min_insync_replicas=minimum)) is not None:
                changes.append(change)
    changes_max = work.settings.registration_changes_max
    work.write(*changes[:changes_max])
    if len(changes) > changes_max:
        raise _Refused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{len(changes)} partitions must change before {MIN_INSYNC_REPLICAS} can change, more than fit into one"
            f" batch; {changes_max} of them have changed now: repeat the request until it succeeds",
        )


def _minimum_after(
    work: Workspace, resource: AlterConfigsResource, value: str | None, state: PartitionState
) -> int:
    """Return the effective minimum that a partition has when min.insync.replicas of the resource is `value`."""
    topic = work.image.topics[state.topic_id].name
    if resource.resource_type is ConfigResourceType.TOPIC:
        own = value
        cluster = work.image.config_of(*ALL_BROKERS).get(MIN_INSYNC_REPLICAS)
    else:
        own = work.image.config_of(ConfigResourceType.TOPIC, topic).get(MIN_INSYNC_REPLICAS)
        cluster = value
    chosen = cluster if own is None else own
    return min(1 if chosen is None else int(chosen), len(state.replicas))


def _concerned(work: Workspace, resource: AlterConfigsResource) -> Iterable[PartitionState]:
    if resource.resource_type is ConfigResourceType.TOPIC:
        topic = work.image.topic(resource.resource_name)
        assert topic is not None, resource
        return topic.partitions
    return work.image.partitions()
