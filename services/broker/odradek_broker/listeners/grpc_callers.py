"""Who calls over gRPC, and what he may do there: the authorizer's answers for gRPC's servicers.

The principal is the subject of the caller's certificate, as on Kafka's listeners; without one it is
User:ANONYMOUS. A broker of the cluster (its certificate says so) passes on what it has checked, so
it may do everything. Unary methods are checked here, by a table; a method that is not in it is
refused. Streams, and Metadata, which hides what the caller may not see, check by themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final

import grpc
import grpc.aio

from odradek_broker.security.authorizer import Authorizer
from odradek_broker.security.grpc_rights import CHECKED_BY_SERVICERS, RULES, Need
from odradek_broker.security.rights import ANONYMOUS, Operation, ResourceType
from odradek_runtime.logs import event_log
from odradek_runtime.tls import peer_identity

_log = event_log(__name__)
CLIENT_ID: Final = "odradek-client-id"
"""Metadata by which a client names itself, for quotas."""
_PUBLIC: Final = ("/grpc.health.", "/grpc.reflection.")


class Caller:
    """Who made one call. Cheap while no authorizer is on."""

    __slots__ = ("_authorizer", "_is_free", "client_id", "host", "principal")

    def __init__(self, authorizer: Authorizer, context: Any) -> None:  # Any: gRPC's contexts
        self._authorizer = authorizer
        self.principal = _principal(context)
        self.host = _host(context.peer())
        metadata = context.invocation_metadata() or ()
        self.client_id = next((str(v) for k, v in metadata if k == CLIENT_ID), "")
        self._is_free = not authorizer.is_on
        if not self._is_free:
            identity = peer_identity(context.auth_context)
            self._is_free = identity is not None and identity[0] == "broker"

    def may(self, operation: Operation, topic: str) -> bool:
        """Whether he may do this to a topic."""
        return self._is_free or self._authorizer.allows(
            self.principal, self.host, operation, ResourceType.TOPIC, topic
        )

    def has(self, need: Need) -> bool:
        """Whether he has one of the rights that would do."""
        return self._is_free or any(
            self._authorizer.allows_any(self.principal, self.host, operation, kind)
            if name is None
            else self._authorizer.allows(self.principal, self.host, operation, kind, name)
            for operation, kind, name in need
        )


class Authorization(grpc.aio.ServerInterceptor):
    """Refuses unary calls that the caller has no right to, before their servicer sees them."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        """Wrap the handler of the method, if it needs that."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        is_unary = handler is not None and handler.unary_unary is not None
        if handler is None or method in CHECKED_BY_SERVICERS or method.startswith(_PUBLIC):
            return handler
        rule = RULES.get(method)
        assert is_unary, f"{method} is a stream that nobody checks"
        inner = handler.unary_unary

        async def checked(request: Any, context: Any) -> Any:
            caller = Caller(self._authorizer, context)
            needs = [()] if rule is None else rule(request)
            for need in needs:
                if not caller.has(need):
                    told = " or ".join(
                        f"{operation.name} on {kind.name} {name or '(any)'}"
                        for operation, kind, name in need
                    )
                    _log.warning(
                        "Refused",
                        principal=caller.principal,
                        host=caller.host,
                        method=method,
                        needs=told,
                    )
                    await context.abort(
                        grpc.StatusCode.PERMISSION_DENIED,
                        f"{caller.principal} needs {told or 'a right that nobody has'}",
                    )
            return await inner(request, context)

        return grpc.unary_unary_rpc_method_handler(
            checked,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _principal(context: Any) -> str:
    pems: list[bytes] = list(context.auth_context().get("x509_pem_cert", ()))
    return _principal_of_pem(pems[0]) if pems else ANONYMOUS


@lru_cache(maxsize=1024)
def _principal_of_pem(pem: bytes) -> str:
    from cryptography import x509  # only where certificates are

    return f"User:{x509.load_pem_x509_certificate(pem).subject.rfc4514_string()}"


def _host(peer: str) -> str:
    """`ipv4:10.0.0.1:4711` and `ipv6:%5B::1%5D:4711` without what is around the address."""
    address = peer.split(":", 1)[-1].rpartition(":")[0]
    return address.replace("%5B", "").replace("%5D", "").strip("[]")
