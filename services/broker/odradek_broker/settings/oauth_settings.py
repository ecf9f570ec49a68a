"""The settings of OAUTHBEARER: which tokens log a client in. Kafka's names, but for the file of keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odradek_broker.settings.coordinator_settings import CoordinatorSettings
from odradek_runtime.settings import SettingsError, setting

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenRules


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings(CoordinatorSettings):
    """Part of a broker's settings."""

    oauth_jwks: str = setting(
        "sasl.oauthbearer.jwks.location",
        "Keys that sign tokens of OAUTHBEARER: a JWKS file, read again when it changes. Never a URL.",
        default="",
    )
    oauth_issuer: str = setting(
        "sasl.oauthbearer.expected.issuer", "Who must have issued a token (iss).", default=""
    )
    oauth_audience: str = setting(
        "sasl.oauthbearer.expected.audience", "Whom a token must be meant for (aud).", default=""
    )
    oauth_claim: str = setting(
        "sasl.oauthbearer.sub.claim.name", "The claim that names the user.", default="sub"
    )
    oauth_skew_s: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        "How far clocks may differ.",
        default=30,
        unit="s",
        minimum=0,
    )

    def token_rules(self) -> TokenRules:
        """Raises SettingsError when something that is checked of a token is not set."""
        from odradek_runtime.jwt_tokens import TokenRules

        for name, value in (
            ("sasl.oauthbearer.jwks.location", self.oauth_jwks),
            ("sasl.oauthbearer.expected.issuer", self.oauth_issuer),
            ("sasl.oauthbearer.expected.audience", self.oauth_audience),
        ):
            if not value:
                raise SettingsError(f"sasl.enabled.mechanisms has OAUTHBEARER: set {name}")
        return TokenRules(
            jwks=Path(self.oauth_jwks),
            issuer=self.oauth_issuer,
            audience=self.oauth_audience,
            principal_claim=self.oauth_claim,
            leeway_s=float(self.oauth_skew_s),
        )
