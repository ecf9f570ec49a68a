"""`python -m odradek_gateway` runs a gateway; `odradek_runtime.program` has the command line."""

from __future__ import annotations

import sys

from odradek_runtime.jwt_tokens import JwksRefused
from odradek_runtime.program import Run, importing, parse_arguments, run_program
from odradek_runtime.tls import TlsRefused, refuse_unusable_files


def main() -> int:
    """Run a gateway and return the exit status."""
    arguments = parse_arguments("odradek gateway", settings_help=_settings_help)
    with importing():
        from odradek_gateway.process import GatewayProcess
        from odradek_gateway.settings import ENV_PREFIX, GatewaySettings

    def make(settings: GatewaySettings) -> Run:
        settings.check(insecure=arguments.insecure)
        refuse_unusable_files(
            certificate=settings.ssl_certificate, key=settings.ssl_key, ca=settings.ssl_ca
        )
        refuse_unusable_files(
            certificate=settings.http_ssl_certificate,
            key=settings.http_ssl_key,
            ca=settings.http_ssl_ca,
            prefix="http.ssl.",
        )
        return GatewayProcess(settings).run

    return run_program(
        "odradek gateway",
        arguments,
        GatewaySettings,
        env_prefix=ENV_PREFIX,
        log_fields=lambda settings: {"gateway": settings.listen},
        make=make,
        refusals=(JwksRefused, TlsRefused),
    )


def _settings_help() -> str:
    from odradek_gateway.settings import ENV_PREFIX, GatewaySettings
    from odradek_runtime.settings import settings_help

    return settings_help(GatewaySettings, ENV_PREFIX)


if __name__ == "__main__":
    sys.exit(main())
