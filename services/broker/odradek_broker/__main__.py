"""`python -m odradek_broker`: see `odradek_runtime.program` for the command line."""

from __future__ import annotations

from odradek_runtime.listeners import ListenRefused
from odradek_runtime.program import (
    exit_at_once,
    importing,
    keep_freed_memory,
    parse_arguments,
    run_program,
)
from odradek_runtime.tls import TlsRefused


def main() -> int:
    """Run a broker and return the exit status."""
    arguments = parse_arguments("odradek broker", settings_help=_settings_help, runs_many=True)
    keep_freed_memory()
    with importing():
        from odradek_broker.host_plan import plan_host
        from odradek_broker.process import BrokerProcess
        from odradek_broker.settings import ENV_PREFIX, BrokerSettings

    return run_program(
        "odradek broker",
        arguments,
        BrokerSettings,
        env_prefix=ENV_PREFIX,
        log_fields=lambda settings: {"broker_id": settings.node_id},
        make=lambda settings: BrokerProcess(settings, insecure=arguments.insecure).run,
        plan=lambda settings: plan_host(settings, arguments.processes),
        refusals=(ListenRefused, TlsRefused),
    )


def _settings_help() -> str:
    from odradek_broker.settings import ENV_PREFIX, BrokerSettings
    from odradek_runtime.settings import settings_help

    return settings_help(BrokerSettings, ENV_PREFIX)


if __name__ == "__main__":
    exit_at_once(main())
