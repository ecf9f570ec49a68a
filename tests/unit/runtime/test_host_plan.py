"""Settings of several brokers on one host: derived from one configuration, and refused where two would collide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odradek_broker.data_directory import open_data_directory
from odradek_broker.host_plan import plan_host
from odradek_broker.settings import ENV_PREFIX, BrokerSettings
from odradek_protocol.identity import BrokerId, IncarnationId
from odradek_runtime.lifecycle import ProcessRefused
from odradek_runtime.settings import SettingsError, load_settings

BASE = {"node.id": "4", "controller.rpc.endpoints": "1@c:1", "log.dirs": "/data"}


def settings(**more: str) -> BrokerSettings:
    given = {**BASE, **{name.replace("_", "."): value for name, value in more.items()}}
    return load_settings(
        BrokerSettings,
        env={},
        env_prefix=ENV_PREFIX,
        assignments=[f"{name}={value}" for name, value in given.items()],
    )


def derived(processes: int, **more: str) -> list[dict[str, Any]]:
    return [process["settings"] for process in plan_host(settings(**more), processes)]


def test_ids_directories_and_ports_are_those_of_the_process() -> None:
    first, second = derived(
        2,
        listeners="KAFKA://0.0.0.0:9092,GRPC://[::1]:9090,REPLICATION://h:0",
        advertised_listeners="KAFKA://b{id}.example.com:9092",
        metrics_port="9404",
        ssl_certificate_location="/etc/broker-{id}.crt",
    )
    assert first["node.id"] == "4"
    assert second == {
        "node.id": "5",
        "log.dirs": "/data/broker-5",
        "listeners": "KAFKA://0.0.0.0:9102,GRPC://[::1]:9100,REPLICATION://h:0",
        "advertised.listeners": "KAFKA://b5.example.com:9102",
        "metrics.port": "9414",
        "health.port": "-1",
        "ssl.certificate.location": "/etc/broker-5.crt",
    }


def test_a_plan_is_what_each_process_reads() -> None:
    for process in derived(3, listeners="GRPC://127.0.0.1:9090,REPLICATION://127.0.0.1:9093"):
        read = settings(**{name.replace(".", "_"): value for name, value in process.items()})
        assert read.node_id == int(process["node.id"])
        assert read.log_dir == Path(process["log.dirs"])
        assert read.host_id_or_name == settings().host_id_or_name


def test_each_process_may_have_a_disk_of_its_own() -> None:
    assert [p["log.dirs"] for p in derived(2, log_dirs="/disk-{id}")] == ["/disk-4", "/disk-5"]


@pytest.mark.parametrize(
    ("processes", "given", "message"),
    [
        (11, {"listeners": "GRPC://h:9000,REPLICATION://h:9100"}, "port 9100 would be used twice"),
        (2, {"metrics_port": "9100"}, "by metrics.port of broker 4 and listeners of broker 5"),
        (2, {"metrics_port": "-1"}, "is ready"),
        (2, {"metrics_port": "65530"}, "is above 65535"),
        (65, {}, "1 to 64 processes"),
        (0, {}, "1 to 64 processes"),
    ],
)
def test_what_cannot_be_derived_is_refused(
    processes: int, given: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        plan_host(settings(**given), processes)
    assert message in str(refused.value)


def test_the_directory_of_a_single_broker_is_not_built_upon(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    with pytest.raises(SettingsError, match="move its files to"):
        plan_host(settings(log_dirs=str(tmp_path)), 2)


def test_a_directory_of_each_process_is_none_of_a_single_broker(tmp_path: Path) -> None:
    given = settings(log_dirs=str(tmp_path / "disk-{id}"), cluster_id="c")
    with pytest.raises(
        ProcessRefused,
        match=r"disk-\{id\} contains \{id\}, which only `odradek broker --processes N`",
    ):
        open_data_directory(given, broker_id=BrokerId(4), incarnation=IncarnationId(bytes(16)))
    assert not list(tmp_path.iterdir())


def test_a_plan_tells_the_supervisor_the_form_of_the_log() -> None:
    (process,) = plan_host(settings(log_format="text"), 1)
    assert process["log_format"] == "text"
