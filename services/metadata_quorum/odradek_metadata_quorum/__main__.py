"""The entry point of a controller process, `python -m odradek_metadata_quorum`. `odradek_runtime.program` parses the
command line.
"""

from __future__ import annotations

from odradek_runtime.listeners import ListenRefused
from odradek_runtime.program import exit_at_once, importing, parse_arguments, run_program
from odradek_runtime.tls import TlsRefused


def main() -> int:
    """Run a controller and return the exit status."""
    arguments = parse_arguments("odradek quorum", settings_help=_settings_help)
    with importing():
        from odradek_metadata_quorum.process import QuorumProcess
        from odradek_metadata_quorum.settings import ENV_PREFIX, QuorumProcessSettings

    return run_program(
        "odradek quorum",
        arguments,
        QuorumProcessSettings,
        env_prefix=ENV_PREFIX,
        log_fields=lambda settings: {"controller_id": settings.node_id},
        make=lambda settings: QuorumProcess(settings, insecure=arguments.insecure).run,
        refusals=(ListenRefused, TlsRefused),
    )


def _settings_help() -> str:
    from odradek_metadata_quorum.settings import ENV_PREFIX, QuorumProcessSettings
    from odradek_runtime.settings import settings_help

    return settings_help(QuorumProcessSettings, ENV_PREFIX)


if __name__ == "__main__":
    exit_at_once(main())
