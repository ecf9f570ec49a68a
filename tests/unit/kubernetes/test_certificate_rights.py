"""The job that makes certificates may access the secrets that it makes, and no others of the
namespace.
"""

from __future__ import annotations

import importlib.util

from tests.unit.kubernetes.rendered import K8S, objects


def test_its_role_names_each_secret_and_lets_the_authority_alone() -> None:
    path = K8S / "components" / "tls" / "make_certificates.py"
    spec = importlib.util.spec_from_file_location("make_certificates", path)
    assert spec is not None
    assert spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    made = {name for name, _, _ in job.certificates("odradek")}
    (role,) = [one for one in objects(".") if one["kind"] == "Role"]
    allowed: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert rule["resources"] == ["secrets"]
        for verb in rule["verbs"]:
            allowed.setdefault(verb, set()).update(rule.get("resourceNames", ["*"]))
    # Kubernetes cannot bind `create` to names: the name is not part of the request's path.
    assert allowed == {"create": {"*"}, "get": made | {job.AUTHORITY}, "update": made}


def test_short_lives_are_renewed_long_before_their_end() -> None:
    (renewal,) = [one for one in objects(".") if one["kind"] == "CronJob"]
    (first,) = [
        one
        for one in objects(".")
        if one["kind"] == "Job" and one["metadata"]["name"] == "make-certificates"
    ]
    assert renewal["spec"]["jobTemplate"]["spec"]["template"] == first["spec"]["template"]
    assert renewal["spec"]["concurrencyPolicy"] == "Forbid"
