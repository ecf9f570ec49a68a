"""Makes the cluster's CA and a certificate for each pod, writes them as secrets, and renews certificates that expire
soon.

The name in a certificate identifies a node, so every pod of a StatefulSet has its own certificate. `odradek-admin-tls`
is for the super user and `odradek-client-tls` for the examples; give each of your clients its own certificate. The
secret with the CA is written first. If the job fails later and is repeated, it reads that secret and uses the same CA.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509

from odradek.cli.certificate_authority import CertificateAuthority

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AUTHORITY = "odradek-ca"
QUORUM_REPLICAS = 3
BROKER_REPLICAS_MAX = (
    9  # the volume with certificates in the StatefulSet has entries for this many brokers
)
# Each client has its own certificate, because ACLs belong to principals.
CLIENTS = ("admin", "prometheus", "client")
AUTHORITY_DAYS = 3650
DAYS = 60
RENEW_DAYS = (
    30  # a certificate is renewed this many days before it expires, so the job may fail for a month
)


def main() -> None:
    namespace = (ACCOUNT / "namespace").read_text()
    with tempfile.TemporaryDirectory() as scratch:
        authority = load_authority(namespace, Path(scratch))
        ca = Path(scratch, "ca.crt").read_bytes()
        for name, identity, hosts in certificates(namespace):
            present = read_secret(namespace, name)
            if present is not None and not is_to_be_renewed(present["tls.crt"], hosts):
                continue
            certificate, key = authority.issue(identity, hosts=hosts, days=DAYS)
            content = {
                "tls.crt": certificate.read_bytes(),
                "tls.key": key.read_bytes(),
                "ca.crt": ca,
            }
            if present is not None:
                replace_secret(namespace, name, content)
                print(f"renewed the certificate in secret {name}")
            elif create_secret(namespace, name, content):
                print(f"made the certificate in secret {name}")


def load_authority(namespace: str, scratch: Path) -> CertificateAuthority:
    """Return the CA from its secret. If there is no secret, create a CA and the secret."""
    authority = CertificateAuthority(scratch)
    secret = read_secret(namespace, AUTHORITY)
    if secret is None:
        authority.create(common_name="Odradek cluster CA", days=AUTHORITY_DAYS)
        content = {name: (scratch / name).read_bytes() for name in ("ca.crt", "ca.key")}
        if create_secret(namespace, AUTHORITY, content):
            print(f"made the certificate authority in secret {AUTHORITY}")
            return authority
        secret = read_secret(
            namespace, AUTHORITY
        )  # another pod of this job has created it in the meantime
        assert secret is not None, (
            f"secret {AUTHORITY} was created and deleted by others in the meantime"
        )
    for name, content_of in secret.items():
        (scratch / name).write_bytes(content_of)
    return authority


def certificates(namespace: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name of the secret, the common name and the host names of each certificate."""
    for ordinal in range(1, QUORUM_REPLICAS + 1):
        pod = f"quorum-{ordinal}"
        hosts = [host for name in (pod, f"{pod}.quorum") for host in in_cluster(name, namespace)]
        yield f"odradek-{pod}-tls", f"controller-{ordinal}", hosts
    for ordinal in range(1, BROKER_REPLICAS_MAX + 1):
        pod = f"broker-{ordinal}"
        names = (pod, f"{pod}.broker", "bootstrap")
        hosts = [host for name in names for host in in_cluster(name, namespace)]
        yield f"odradek-{pod}-tls", pod, hosts
    yield "odradek-gateway-tls", "gateway", in_cluster("gateway", namespace)
    for client in CLIENTS:
        yield f"odradek-{client}-tls", client, []


def is_to_be_renewed(certificate: bytes, hosts: list[str]) -> bool:
    """Return whether a certificate expires soon, lacks one of the host names, or is valid for longer than DAYS.
    Certificates of older releases lack host names and are valid for longer.
    """
    present = x509.load_pem_x509_certificate(certificate)
    days = (present.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days
    return not RENEW_DAYS <= days <= DAYS or not set(hosts) <= names_in(present)


def names_in(certificate: x509.Certificate) -> set[str]:
    """Return the DNS names for which the certificate is valid."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return set(extension.value.get_values_for_type(x509.DNSName))


def in_cluster(name: str, namespace: str) -> list[str]:
    return [name, f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]


def read_secret(namespace: str, name: str) -> dict[str, bytes] | None:
    try:
        secret = call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


def create_secret(namespace: str, name: str, content: dict[str, bytes]) -> bool:
    """Create a secret. Return False if a secret with this name already exists."""
    try:
        call("POST", f"/api/v1/namespaces/{namespace}/secrets", secret_of(name, content))
    except urllib.error.HTTPError as error:
        if error.code == 409:
            return False
        raise
    return True


def replace_secret(namespace: str, name: str, content: dict[str, bytes]) -> None:
    """Replace key and certificate in one request, so that pods never see a new key with an old certificate."""
    call("PUT", f"/api/v1/namespaces/{namespace}/secrets/{name}", secret_of(name, content))


def secret_of(name: str, content: dict[str, bytes]) -> dict[str, Any]:
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "data": data,
    }


def call(method: str, path: str, body: object = None) -> Any:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    request = urllib.request.Request(
        f"https://{host}:{port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
            "Content-Type": "application/json",
        },
    )
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=context, timeout=30) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
