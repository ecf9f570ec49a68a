"""A cluster of processes with TLS, where all clients must authenticate and access control entries
decide what they may do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from odradek import SaslCredentials, TlsOptions
from odradek.cli.certificate_authority import CertificateAuthority
from odradek.client import Client
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from tests.e2e.token_issuer import TokenIssuer

GATEWAYS = "User:CN=gateway-1;User:CN=gateway-2"


class SecureCluster(EmbeddedCluster):
    """A cluster in which `authority` issues certificates and `issuer` tokens; `admin` and the
    gateways are super users.
    """

    def __init__(self, directory: Path, plan: ClusterPlan) -> None:
        self.authority = CertificateAuthority(directory / "tls")
        self.ca = self.authority.create(common_name="test", days=1)
        self.issuer = TokenIssuer(directory / "jwks.json")
        super().__init__(plan)

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Return the paths of a certificate for loopback and of its key."""
        return self.authority.issue(name, hosts=["127.0.0.1", "localhost"], days=1)

    def tls(self, name: str) -> TlsOptions:
        """Return the options of an SDK client with that certificate."""
        certificate, key = self.certificate(name)
        return TlsOptions(ca=self.ca, cert=certificate, key=key)

    def admin(self) -> Client:
        """Return a client that may do everything."""
        return Client(self.bootstrap, tls=self.tls("admin"))

    def user(self, name: str, password: str, brokers: Iterable[int] = ()) -> Client:
        """Return a client that logs in as this user at one of these brokers, or at any broker."""
        endpoints = [
            f"127.0.0.1:{self.brokers[broker_id].ready_line['ports']['GRPC_USERS']}"
            for broker_id in brokers or self.brokers
        ]
        return Client(
            endpoints,
            tls=TlsOptions(ca=self.ca),
            credentials=SaslCredentials(username=name, password=password),
        )

    def logged(self, process: str) -> list[dict[str, Any]]:
        """Return the log events of a process."""
        path = self.data_dir / f"{process}.log"
        lines = path.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def _child(self, name: str, module: str, settings: dict[str, Any], *more: str) -> ChildProcess:
        certificate, key = self.certificate(name)
        settings = {
            **settings,
            "ssl.certificate.location": certificate,
            "ssl.key.location": key,
            "ssl.ca.location": self.ca,
        }
        if module == "odradek_broker":
            settings |= {
                "listeners": f"{settings['listeners']},GRPC_USERS://127.0.0.1:0",
                "listener.security.protocol.map": "KAFKA:SASL_SSL,GRPC:SSL,GRPC_USERS:SASL_SSL",
                "ssl.client.auth": "required",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
                "sasl.oauthbearer.jwks.location": self.issuer.jwks,
                "sasl.oauthbearer.expected.issuer": self.issuer.name,
                "sasl.oauthbearer.expected.audience": self.issuer.audience,
                "authorizer.class.name": "acl",
                "super.users": f"User:CN=admin;{GATEWAYS}",
                "delegation.principals": GATEWAYS,
            }
        elif module == "odradek_gateway":
            settings |= {
                "http.ssl.certificate.location": certificate,
                "http.ssl.key.location": key,
                "http.ssl.ca.location": self.ca,
                "http.ssl.client.auth": "requested",
                "authentication.methods": "bearer,basic,mtls",
                "jwt.jwks.location": self.issuer.jwks,
                "jwt.issuer": self.issuer.name,
                "jwt.audience": self.issuer.audience,
                "failed.logins.per.minute.max": 1000,
                "delegation.principals": GATEWAYS,
            }
        return super()._child(name, module, settings, *more)
