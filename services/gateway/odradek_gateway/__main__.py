"""`python -m odradek_gateway`: see `odradek_runtime.arguments` for the command line."""

from __future__ import annotations

import os
import sys

from odradek_runtime.arguments import parse_arguments
from odradek_runtime.jwt_tokens import JwksRefused
from odradek_runtime.lifecycle import EXIT_USAGE, run_process
from odradek_runtime.logs import configure_logs
from odradek_runtime.settings import SettingsError, load_settings


def main() -> int:
    """Run a gateway; the exit status."""
    arguments = parse_arguments("odradek gateway")
    from odradek_gateway.process import GatewayProcess
    from odradek_gateway.settings import ENV_PREFIX, GatewaySettings

    try:
        settings = load_settings(
            GatewaySettings,
            env=os.environ,
            env_prefix=ENV_PREFIX,
            config_file=arguments.config_file,
            assignments=arguments.assignments,
        )
        configure_logs(level=settings.log_level, bound={"gateway": settings.listen})
        settings.check(insecure=arguments.insecure)
        process = GatewayProcess(settings)
    except (SettingsError, JwksRefused) as error:
        print(f"odradek gateway: {error}", file=sys.stderr)
        return EXIT_USAGE
    return run_process(
        process.run, program="odradek gateway", exit_with_parent=arguments.exit_with_parent
    )


if __name__ == "__main__":
    sys.exit(main())
