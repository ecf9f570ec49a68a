"""A model of the transaction protocol, all of whose reachable states are visited.

The model is small: two partitions, two coordinators, one transactional id, two transactions. It contains none of the
production code. It shows that the rules of the protocol suffice, and that each of them is needed: `explore` visits
every reachable state, and returns the first one in which an invariant is violated, with the events that led to the
state.

At some moment coordinator 2 replaces coordinator 1, which does not notice this. A record that coordinator 1 has
appended, and does not know to be committed, survives or is lost. Messages are a set that only grows, and each message
may be delivered at any time, so messages are lost, duplicated and delayed. A producer with transaction.version 2 writes
to both partitions in epochs 0 and 1 and commits, or the time-out aborts its transaction; its late batches are those of
a zombie. Batches and markers in the log of a partition are replicated at once.

The invariants have the numbers that they have in the simulator:

    T2  a marker has a committed decision with its outcome for its transaction
    T3  all markers of one transaction have one outcome
    T4  when the completion is committed, every registered partition has the marker
    T5  a batch's transaction has registered the partition, and has no marker before the batch
    T6  no batch has an epoch below that of an earlier marker
    T9  no partition appends a coordinator's marker after it knows a newer coordinator
    WC  no transaction is committed that its producer did not commit ("wrong commit")
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

PARTITIONS: Final = (0, 1)
EPOCHS: Final = 2  # transactions have the epochs 0 and 1; after that, epoch 2 writes nothing
GUARDS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of the protocol. All rules are on; a test switches one of them off. The comments have the numbers of
    the planted bugs.
    """

    all_partitions_before_completion: bool = True  # 12
    late_end_is_refused: bool = True  # 13
    decision_is_committed_first: bool = True  # 40
    batches_are_verified: bool = True  # 41
    marker_voids_the_guard: bool = True  # 42
    coordinator_epoch_is_fenced: bool = True  # 43
    acknowledgements_name_the_decision: bool = True  # 47
    add_waits_for_the_completion: bool = True  # 64


class Transaction(NamedTuple):
    """The coordinator's state of the transactional id. `outcome` is None if no transaction is open, or if the open one
    is not decided.
    """

    epoch: int = 0
    parts: frozenset[int] = frozenset()
    outcome: bool | None = None
    is_complete: bool = True


class Coordinator(NamedTuple):
    """One coordinator's state: whether its last record is committed, and which partitions lack their marker."""

    state: Transaction
    is_committed: bool = True
    unmarked: frozenset[int] = frozenset()
    decision: int = 0
    # Messages that are sent when the record is committed.
    waiting: frozenset[tuple[object, ...]] = frozenset()


class Partition(NamedTuple):
    """The log of a partition, and the state in its leader's memory."""

    log: tuple[tuple[object, ...], ...] = ()
    epoch: int = 0  # the highest epoch of batches and markers
    open_epoch: int | None = None
    heard: int = 1  # the highest known coordinator epoch
    guard: int = 0  # the number of the last requested registration
    asked: tuple[int, int] | None = None  # (epoch, guard) of the registration in progress


class World(NamedTuple):
    leader: int = 1
    coordinators: tuple[Coordinator, Coordinator | None] = (Coordinator(Transaction()), None)
    partitions: tuple[Partition, ...] = (Partition(), Partition())
    messages: frozenset[tuple[object, ...]] = frozenset()
    decided: frozenset[tuple[int, bool]] = frozenset()  # committed: (epoch of the data, outcome)
    registered: frozenset[tuple[int, int]] = frozenset()  # committed: (epoch, partition)
    violation: str = ""


_INERT: Final = Coordinator(Transaction(), is_committed=False)


@dataclass(frozen=True, slots=True)
class Exploration:
    """The number of states. If a state violates an invariant: the invariant, and the events that lead to the state."""

    states: int
    violation: str = ""
    events: tuple[str, ...] = ()


def explore(rules: Rules, states_max: int = 2_000_000) -> Exploration:
    """Visit all states breadth first, so the events that lead to a violation are the fewest. Raises RuntimeError if
    there are more states than `states_max`."""
    first = World()
    origin: dict[World, tuple[World, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        for event, reached in steps(world, rules):
            following = _without_dead_messages(reached, rules)
            if following in origin:
                continue
            origin[following] = (world, event)
            if following.violation:
                return Exploration(len(origin), following.violation, _events(origin, following))
            if len(origin) > states_max:
                raise RuntimeError(f"more than {states_max} states")
            queue.append(following)
    return Exploration(len(origin))


def _events(origin: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    events = []
    while (step := origin[world]) is not None:
        world, event = step
        events.append(event)
    return tuple(reversed(events))


def steps(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    """Yield every event that may happen, with the state after it."""
    yield from _producer_steps(world)
    for message in world.messages:
        match message:
            case ("batch", int(epoch), int(partition)):
                yield from _batch(world, rules, epoch, partition)
            case ("register", int(epoch), int(partition), int(guard)):
                yield from _register(world, rules, epoch, partition, guard)
            case ("yes", int(epoch), int(partition), int(guard), int(coordinator)):
                yield from _yes(world, rules, epoch, partition, guard, coordinator)
            case ("end", int(epoch), bool(outcome)):
                yield from _end(world, rules, epoch, outcome)
            case ("marker", int(epoch), bool(outcome), int(partition), int(coordinator), int(n)):
                yield from _marker(world, rules, epoch, outcome, partition, coordinator, n)
            case ("acknowledged", int(partition), int(coordinator), int(decision)):
                yield from _acknowledged(world, rules, partition, coordinator, decision)
    for number in (1, 2):
        yield from _coordinator_steps(world, rules, number)
    yield from _take_over(world)


def _without_dead_messages(world: World, rules: Rules) -> World:
    """Remove messages that can no longer change anything, so that states which differ only in them become equal. A
    message that only a rule makes harmless is kept while that rule is off.
    """
    first, second = world.coordinators
    if second is not None and first != _INERT and rules.decision_is_committed_first:
        # No record that the replaced coordinator appends is committed, so it sends no more messages.
        world = world._replace(coordinators=(_INERT, second))
    messages = frozenset(m for m in world.messages if _is_alive(world, rules, m))
    partitions = world.partitions
    if rules.marker_voids_the_guard:
        partitions = tuple(p if p.asked else p._replace(guard=0) for p in partitions)
    return world._replace(messages=messages, partitions=partitions)


def _is_alive(world: World, rules: Rules, message: tuple[object, ...]) -> bool:
    match message:
        case ("batch", int(epoch), int(index)):
            return epoch >= world.partitions[index].epoch or not rules.batches_are_verified
        case ("register" | "yes", int(epoch), int(index), int(guard), *_):
            is_asked = world.partitions[index].asked == (epoch, guard)
            return is_asked or not rules.marker_voids_the_guard
        case ("end", int(epoch), _):
            return epoch >= len(world.decided) or not rules.late_end_is_refused
        case ("marker", int(epoch), bool(outcome), int(index), int(number), _):
            partition = world.partitions[index]
            is_lower = epoch < partition.epoch and ("marker", epoch, outcome) in partition.log
            is_fenced = number < partition.heard and rules.coordinator_epoch_is_fenced
            return not is_lower and not is_fenced
        case ("acknowledged", int(index), int(number), int(decision)):
            coordinator = world.coordinators[number - 1]
            if coordinator is None or not rules.acknowledgements_name_the_decision:
                return coordinator != _INERT
            return coordinator.decision == decision and index in coordinator.unmarked
    raise AssertionError(message)


def _say(world: World, *messages: tuple[object, ...]) -> World:
    return world._replace(messages=world.messages.union(messages))


def _producer_steps(world: World) -> Iterator[tuple[str, World]]:
    """Yield the producer's steps: it sends a batch, or commits."""
    epoch = len(world.decided)
    if epoch >= EPOCHS:
        return
    for partition in PARTITIONS:
        message = ("batch", epoch, partition)
        # The partitions are alike, so it is enough to send the first batch to the first one.
        is_first = epoch == 0 and not any(sent[0] == "batch" for sent in world.messages)
        if message not in world.messages and not (is_first and partition > 0):
            yield f"producer sends epoch {epoch} to {partition}", _say(world, message)
    if ("end", epoch, True) not in world.messages:
        yield f"producer commits epoch {epoch}", _say(world, ("end", epoch, True))


def _with_partition(world: World, index: int, partition: Partition) -> World:
    partitions = list(world.partitions)
    partitions[index] = partition
    return world._replace(partitions=tuple(partitions))


def _append_batch(world: World, index: int, epoch: int) -> World:
    partition = world.partitions[index]
    violation = ""
    if (epoch, index) not in world.registered:
        violation = "T5: a batch of an unregistered transaction"
    for kind, *rest in partition.log:
        if kind == "marker" and isinstance(rest[0], int) and rest[0] > epoch:
            violation = "T5, T6: a batch after the marker of its transaction"
    log = partition.log
    if log[-1:] != (("batch", epoch),):
        log = (*log, ("batch", epoch))
    appended = partition._replace(
        log=log, epoch=max(epoch, partition.epoch), open_epoch=epoch, asked=None
    )
    return _with_partition(world, index, appended)._replace(violation=violation)


def _batch(world: World, rules: Rules, epoch: int, index: int) -> Iterator[tuple[str, World]]:
    partition = world.partitions[index]
    if rules.batches_are_verified and epoch < partition.epoch:
        return
    if partition.open_epoch == epoch or not rules.batches_are_verified:
        yield f"{index} appends epoch {epoch}", _append_batch(world, index, epoch)
    elif partition.asked is None and partition.guard < GUARDS_MAX:
        guard = partition.guard + 1
        asking = partition._replace(guard=guard, asked=(epoch, guard))
        question = ("register", epoch, index, guard)
        yield (
            f"{index} asks for epoch {epoch}",
            _say(_with_partition(world, index, asking), question),
        )


def _yes(
    world: World, rules: Rules, epoch: int, index: int, guard: int, coordinator: int
) -> Iterator[tuple[str, World]]:
    partition = world.partitions[index]
    if rules.marker_voids_the_guard:
        if partition.asked != (epoch, guard):
            return
    elif partition.guard < guard or partition.epoch > epoch + 1:
        return
    if rules.coordinator_epoch_is_fenced and coordinator < partition.heard:
        return
    heard = partition._replace(heard=max(coordinator, partition.heard))
    following = _append_batch(_with_partition(world, index, heard), index, epoch)
    yield f"{index} appends epoch {epoch} on the yes of {coordinator}", following


def _marker(
    world: World,
    rules: Rules,
    epoch: int,
    outcome: bool,
    index: int,
    coordinator: int,
    decision: int,
) -> Iterator[tuple[str, World]]:
    """Deliver a marker. Its `epoch` is one above the epoch of the transaction's batches."""
    partition = world.partitions[index]
    if coordinator < partition.heard and rules.coordinator_epoch_is_fenced:
        return
    acknowledgement = ("acknowledged", index, coordinator, decision)
    is_repeat = epoch == partition.epoch and partition.open_epoch is None
    if epoch <= partition.epoch and not is_repeat:
        # INVALID_PRODUCER_EPOCH: the partition already has this transaction's marker, so the coordinator counts the
        # partition as marked.
        yield f"{index} refuses marker {epoch}", _say(world, acknowledgement)
        return
    violation = ""
    if (epoch - 1, outcome) not in world.decided:
        violation = "T2: a marker without a committed decision"
    for other in world.partitions:
        if ("marker", epoch, not outcome) in other.log:
            violation = "T3: a torn transaction"
    if coordinator < partition.heard:
        violation = "T9: a marker of a fenced coordinator"
    log = partition.log
    if ("marker", epoch, outcome) not in log:
        log = (*log, ("marker", epoch, outcome))
    asked = None if rules.marker_voids_the_guard else partition.asked
    marked = partition._replace(
        log=log,
        epoch=epoch,
        open_epoch=None,
        heard=max(coordinator, partition.heard),
        asked=asked,
    )
    following = _say(_with_partition(world, index, marked), acknowledgement)
    yield (
        f"{index} appends marker {epoch} of {coordinator}",
        following._replace(violation=violation),
    )


def _active(world: World) -> Iterator[tuple[int, Coordinator]]:
    """Yield the coordinators that consider themselves active and do not wait for an append."""
    for number, coordinator in enumerate(world.coordinators, 1):
        if coordinator is not None and coordinator.is_committed:
            yield number, coordinator


def _with_coordinator(world: World, number: int, coordinator: Coordinator) -> World:
    coordinators = list(world.coordinators)
    coordinators[number - 1] = coordinator
    return world._replace(coordinators=(coordinators[0] or coordinator, coordinators[1]))


def _append(
    world: World,
    number: int,
    coordinator: Coordinator,
    state: Transaction,
    *messages: tuple[object, ...],
) -> World:
    appended = coordinator._replace(
        state=state, is_committed=False, waiting=coordinator.waiting.union(messages)
    )
    return _with_coordinator(world, number, appended)


def _register(
    world: World, rules: Rules, epoch: int, index: int, guard: int
) -> Iterator[tuple[str, World]]:
    for number, coordinator in _active(world):
        state = coordinator.state
        yes = ("yes", epoch, index, guard, number)
        if epoch != state.epoch:
            continue
        is_decided = state.outcome is not None and not state.is_complete
        if is_decided and not rules.add_waits_for_the_completion:
            said = world._replace(registered=world.registered | {(epoch, index)})
            yield f"{number} says yes to {index} too early", _say(said, yes)
            continue
        if is_decided:
            continue
        if state.is_complete:
            state = Transaction(epoch=epoch, parts=frozenset({index}), is_complete=False)
        elif index in state.parts:
            # Nothing is written. The response waits for the lease, which ends when another coordinator leads.
            if number == world.leader:
                yield f"{number} says yes to {index} again", _say(world, yes)
            continue
        else:
            state = state._replace(parts=state.parts | {index})
        yield (
            f"{number} registers {index} in epoch {epoch}",
            _append(world, number, coordinator, state, yes),
        )


def _end(world: World, rules: Rules, epoch: int, outcome: bool) -> Iterator[tuple[str, World]]:
    for number, coordinator in _active(world):
        state = coordinator.state
        is_open = not state.is_complete and state.outcome is None
        is_of_it = epoch == state.epoch or (
            not rules.late_end_is_refused and epoch + 1 == state.epoch
        )
        if is_open and is_of_it:
            yield _decide(world, rules, number, coordinator, outcome)


def _decide(
    world: World, rules: Rules, number: int, coordinator: Coordinator, outcome: bool
) -> tuple[str, World]:
    state = coordinator.state
    decided = state._replace(epoch=state.epoch + 1, outcome=outcome)
    decision = coordinator.decision + 1
    markers = _markers(decided, number, decision)
    coordinator = coordinator._replace(unmarked=decided.parts, decision=decision)
    following = _append(world, number, coordinator, decided, *markers)
    if not rules.decision_is_committed_first:
        following = _say(following, *markers)
    if outcome and ("end", state.epoch, True) not in world.messages:
        following = following._replace(violation="WC: a commit that nobody requested")
    return f"{number} decides epoch {state.epoch}: {outcome}", following


def _markers(state: Transaction, number: int, decision: int) -> list[tuple[object, ...]]:
    return [
        ("marker", state.epoch, state.outcome, partition, number, decision)
        for partition in state.parts
    ]


def _acknowledged(
    world: World, rules: Rules, index: int, number: int, decision: int
) -> Iterator[tuple[str, World]]:
    for _, coordinator in filter(lambda active: active[0] == number, _active(world)):
        is_of_it = coordinator.decision == decision or not rules.acknowledgements_name_the_decision
        if index not in coordinator.unmarked or not is_of_it:
            continue
        unmarked = coordinator.unmarked - {index}
        if not rules.all_partitions_before_completion:
            unmarked = frozenset()
        coordinator = coordinator._replace(unmarked=unmarked)
        event = f"{number} learns that {index} has its marker"
        if unmarked:
            yield event, _with_coordinator(world, number, coordinator)
        else:
            complete = coordinator.state._replace(is_complete=True)
            yield f"{event}, the last", _append(world, number, coordinator, complete)


def _coordinator_steps(world: World, rules: Rules, number: int) -> Iterator[tuple[str, World]]:
    coordinator = world.coordinators[number - 1]
    if coordinator is None:
        return
    state = coordinator.state
    if coordinator.is_committed:
        if not state.is_complete and state.outcome is None:
            event, following = _decide(world, rules, number, coordinator, False)
            yield f"time-out: {event}", following
    elif number == world.leader:
        committed = coordinator._replace(is_committed=True, waiting=frozenset())
        following = _committed(_with_coordinator(world, number, committed), state)
        yield f"{number}'s append is committed", _say(following, *coordinator.waiting)


def _committed(world: World, state: Transaction) -> World:
    """Apply the content of a committed record, and check T4."""
    registered = world.registered | {(state.epoch, index) for index in state.parts}
    if state.outcome is None:
        return world._replace(registered=registered)
    registered = world.registered | {(state.epoch - 1, index) for index in state.parts}
    decided = world.decided | {(state.epoch - 1, state.outcome)}
    violation = world.violation
    if len({epoch for epoch, _ in decided}) < len(decided):
        violation = "T3: a decision was revised"
    if state.is_complete:
        for index in state.parts:
            if ("marker", state.epoch, state.outcome) not in world.partitions[index].log:
                violation = "T4: complete without all markers"
    return world._replace(registered=registered, decided=decided, violation=violation)


def _take_over(world: World) -> Iterator[tuple[str, World]]:
    """Let coordinator 2 load the log. The last append of coordinator 1 survives, or does not."""
    first, second = world.coordinators
    if second is not None:
        return
    for survives in (True, False) if not first.is_committed else (True,):
        state = first.state if survives else _committed_state(world)
        if state is None:
            continue
        following = world._replace(leader=2)
        if survives and not first.is_committed:
            following = _committed(following, state)
        is_decided = state.outcome is not None and not state.is_complete
        loaded = Coordinator(
            state, unmarked=state.parts if is_decided else frozenset(), decision=int(is_decided)
        )
        following = following._replace(coordinators=(first, loaded))
        if is_decided:
            following = _say(following, *_markers(state, 2, 1))
        yield f"coordinator 2 takes over, the last append survives: {survives}", following


def _committed_state(world: World) -> Transaction | None:
    """Return the state before the lost append, computed from the history."""
    first = world.coordinators[0]
    state = first.state
    if state.is_complete and state.outcome is not None:
        return state._replace(is_complete=False)
    if state.outcome is not None:
        return state._replace(epoch=state.epoch - 1, outcome=None)
    parts = frozenset(index for epoch, index in world.registered if epoch == state.epoch)
    if parts:
        return state._replace(parts=parts)
    # The transaction had not begun: the one before is complete, or there was none.
    for epoch, outcome in world.decided:
        if epoch == state.epoch - 1:
            before = frozenset(index for e, index in world.registered if e == epoch)
            return Transaction(state.epoch, before, outcome, True)
    return Transaction()


def without(rule: str) -> Rules:
    """Return the rules with one of them switched off."""
    return replace(Rules(), **{rule: False})
