"""Settings of OAUTHBEARER: which tokens a client can log in with.

The names are Kafka's, except for the file of keys: Kafka names a URL, this broker reads a file.
"""

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
    """Settings of OAUTHBEARER."""

    oauth_jwks: str = setting(
        "sasl.oauthbearer.jwks.location",
        "Path of a JWKS file with the keys that OAUTHBEARER tokens are signed with. It is read again when it"
        " changes. A URL is not supported.",
        default="",
    )
    oauth_issuer: str = setting(
        "sasl.oauthbearer.expected.issuer",
        "A token is accepted only if its issuer (iss) is this one.",
        default="",
    )
    oauth_audience: str = setting(
        "sasl.oauthbearer.expected.audience",
        "A token is accepted only if its audience (aud) contains this one.",
        default="",
    )
    oauth_claim: str = setting(
        "sasl.oauthbearer.sub.claim.name",
        "The claim of a token that holds the user's name.",
        default="sub",
    )
    oauth_skew_s: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        "How far the clocks of the issuer and the broker may differ when a token's lifetime is checked.",
        default=30,
        unit="s",
        minimum=0,
    )

    def token_rules(self) -> TokenRules:
        """Return the rules that tokens are checked by.

        Raises:
            SettingsError: the keys, the issuer or the audience is not set.
        """
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
