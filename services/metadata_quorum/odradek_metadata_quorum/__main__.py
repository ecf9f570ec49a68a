"""`python -m odradek_metadata_quorum`: see `odradek_runtime.arguments` for the command line."""

from __future__ import annotations

import os
import sys

from odradek_runtime.arguments import parse_arguments
from odradek_runtime.lifecycle import EXIT_USAGE, run_process
from odradek_runtime.listeners import ListenRefused
from odradek_runtime.logs import configure_logs
from odradek_runtime.settings import SettingsError, load_settings
from odradek_runtime.tls import TlsRefused


def main() -> int:
    """Run a controller; the exit status."""
    arguments = parse_arguments("odradek quorum")
    from odradek_metadata_quorum.process import QuorumProcess
    from odradek_metadata_quorum.settings import ENV_PREFIX, QuorumProcessSettings

    try:
        settings = load_settings(
            QuorumProcessSettings,
            env=os.environ,
            env_prefix=ENV_PREFIX,
            config_file=arguments.config_file,
            assignments=arguments.assignments,
        )
        configure_logs(level=settings.log_level, bound={"controller_id": settings.node_id})
        process = QuorumProcess(settings, insecure=arguments.insecure)
    except (SettingsError, ListenRefused, TlsRefused) as error:
        print(f"odradek quorum: {error}", file=sys.stderr)
        return EXIT_USAGE
    return run_process(
        process.run, program="odradek quorum", exit_with_parent=arguments.exit_with_parent
    )


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All that must be closed is closed. A thread that still waits for the disk, or one of gRPC's,
    # may keep the interpreter from its end.
    os._exit(status)
