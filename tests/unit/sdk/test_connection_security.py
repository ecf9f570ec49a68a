"""Which of TLS and a login a command uses: options before the environment, and this before the properties file."""

from __future__ import annotations

import pytest

from odradek.cli import connection

USER, CA, PROTOCOL = "sasl.username", "ssl.ca.location", "security.protocol"


def security(
    monkeypatch: pytest.MonkeyPatch,
    *,
    options: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    file: dict[str, str] | None = None,
) -> tuple[bool, bool]:
    """Return whether a command uses TLS, and whether it logs in."""
    for name in connection.NAMES:
        monkeypatch.delenv(connection._variable(name), raising=False)
    for name, value in (environment or {}).items():
        monkeypatch.setenv(connection._variable(name), value)
    monkeypatch.setattr(connection, "_options", options or {})
    monkeypatch.setattr(connection, "_from_file", file or {})
    values = connection.settings(connection._options, connection.os.environ, connection._from_file)
    return connection._security(values)


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("has_login", [False, True])
def test_the_protocol_of_a_file_decides(
    monkeypatch: pytest.MonkeyPatch, has_tls: bool, has_login: bool
) -> None:
    protocol = f"{'SASL_' if has_login else ''}{'SSL' if has_tls else 'PLAINTEXT'}"
    file = {PROTOCOL: protocol, CA: "ca", **({USER: "alice"} if has_login else {})}
    assert security(monkeypatch, file=file) == (has_tls, has_login)


@pytest.mark.parametrize("source", ["options", "environment"])
def test_what_takes_precedence_over_the_file_adds_a_login_or_tls(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    for protocol, name, expected in (
        ("SSL", USER, (True, True)),
        ("PLAINTEXT", USER, (False, True)),
        ("PLAINTEXT", CA, (True, False)),
        ("PLAINTEXT", "ssl.key.location", (True, False)),
    ):
        given = {source: {name: "x"}}
        assert security(monkeypatch, file={PROTOCOL: protocol}, **given) == expected


def test_an_option_adds_tls_to_the_protocol_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without TLS, the password would be sent in clear text although the user names a CA."""
    found = security(
        monkeypatch, options={CA: "ca", USER: "alice"}, environment={PROTOCOL: "SASL_PLAINTEXT"}
    )
    assert found == (True, True)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_the_protocol_of_the_environment_overrides_a_file_with_a_user(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    file = {PROTOCOL: "SASL_SSL", USER: "alice"}
    found = security(monkeypatch, environment={PROTOCOL: protocol}, file=file)
    assert found == (protocol == "SSL", False)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("file", (PROTOCOL, USER)),
        ("environment", ("ODRADEK_SECURITY_PROTOCOL", "ODRADEK_SASL_USERNAME")),
    ],
)
def test_a_user_beside_a_protocol_without_a_login_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    names: tuple[str, str],
) -> None:
    given = {source: {PROTOCOL: "SSL", USER: "alice"}}
    with pytest.raises(SystemExit):
        security(monkeypatch, **given)
    told = capsys.readouterr().err
    assert f"set {names[0]} to SASL_SSL, or remove {names[1]}" in told


@pytest.mark.parametrize("name", ["sasl.password", "sasl.mechanism"])
def test_parts_of_a_login_without_a_user_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(SystemExit):
        security(monkeypatch, options={name: "x"})
