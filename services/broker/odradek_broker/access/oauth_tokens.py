"""Whose tokens log a client in by OAUTHBEARER, on whichever listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek_broker.access.sasl import OAUTHBEARER
from odradek_broker.settings import BrokerSettings
from odradek_runtime.settings import SettingsError

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenVerifier


def token_verifier(settings: BrokerSettings) -> TokenVerifier | None:
    """None where OAUTHBEARER is not enabled. Raises SettingsError for keys that cannot be read."""
    if OAUTHBEARER not in settings.sasl_mechanisms:
        return None
    from odradek_runtime.jwt_tokens import JwksRefused, TokenVerifier  # 0.1 s for those who need it

    try:
        return TokenVerifier(settings.token_rules())
    except JwksRefused as refused:
        raise SettingsError(f"sasl.oauthbearer.jwks.location: {refused}") from None
