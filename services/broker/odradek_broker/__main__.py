"""`python -m odradek_broker`: see `odradek_runtime.arguments` for the command line."""

from __future__ import annotations

import os
import sys

from odradek_runtime.arguments import parse_arguments
from odradek_runtime.lifecycle import EXIT_USAGE, run_process
from odradek_runtime.listeners import ListenRefused
from odradek_runtime.logs import configure_logs
from odradek_runtime.memory import keep_freed_memory
from odradek_runtime.settings import SettingsError, load_settings
from odradek_runtime.tls import TlsRefused


def main() -> int:
    """Run a broker; the exit status."""
    arguments = parse_arguments("odradek broker")
    keep_freed_memory()
    from odradek_broker.process import BrokerProcess
    from odradek_broker.settings import ENV_PREFIX, BrokerSettings

    try:
        settings = load_settings(
            BrokerSettings,
            env=os.environ,
            env_prefix=ENV_PREFIX,
            config_file=arguments.config_file,
            assignments=arguments.assignments,
        )
        configure_logs(level=settings.log_level, bound={"broker_id": settings.node_id})
        process = BrokerProcess(settings, insecure=arguments.insecure)
    except (SettingsError, ListenRefused, TlsRefused) as error:
        print(f"odradek broker: {error}", file=sys.stderr)
        return EXIT_USAGE
    return run_process(
        process.run, program="odradek broker", exit_with_parent=arguments.exit_with_parent
    )


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All that must be closed is closed. A sync that was given up may still hold a thread, which
    # the interpreter would wait for.
    os._exit(status)
