"""Make the cluster's authority and the certificates of its pods, and write them as secrets; keeps what is there.

Every pod of a StatefulSet mounts the same secret, so a certificate carries the identity of each ordinal.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REPLICAS_MAX = 9


def main() -> None:
    namespace = (ACCOUNT / "namespace").read_text()
    with tempfile.TemporaryDirectory() as scratch:
        if secret_exists(namespace, "odradek-ca"):
            print("the certificates are there")
            return
        run("init", "--dir", scratch)
        for service, identity in (
            ("quorum", "controller"),
            ("broker", "broker"),
            ("gateway", "gateway"),
        ):
            hosts = [f"{identity}-{i}" for i in range(1, REPLICAS_MAX + 1)]
            hosts += [f"{service}-{i}.{service}" for i in range(1, REPLICAS_MAX + 1)]
            hosts += [
                service,
                "bootstrap",
                f"{service}.{namespace}.svc",
                f"*.{service}.{namespace}.svc.cluster.local",
            ]
            arguments = [a for host in hosts for a in ("--host", host)]
            run("issue", service, "--dir", scratch, *arguments)
            create_secret(
                namespace,
                f"odradek-{service}-tls",
                {
                    "tls.crt": Path(scratch, f"{service}.crt").read_bytes(),
                    "tls.key": Path(scratch, f"{service}.key").read_bytes(),
                    "ca.crt": Path(scratch, "ca.crt").read_bytes(),
                },
            )
        create_secret(
            namespace,
            "odradek-ca",
            {
                "ca.crt": Path(scratch, "ca.crt").read_bytes(),
                "ca.key": Path(scratch, "ca.key").read_bytes(),
            },
        )


def run(*arguments: str) -> None:
    subprocess.run(["odradek", "tls", *arguments], check=True)


def secret_exists(namespace: str, name: str) -> bool:
    try:
        call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise
    return True


def create_secret(namespace: str, name: str, content: dict[str, bytes]) -> None:
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "data": data,
    }
    try:
        call("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    except urllib.error.HTTPError as error:
        if error.code != 409:  # an earlier try made it
            raise


def call(method: str, path: str, body: object = None) -> None:
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
    with urllib.request.urlopen(request, context=context, timeout=30):
        pass


if __name__ == "__main__":
    main()
