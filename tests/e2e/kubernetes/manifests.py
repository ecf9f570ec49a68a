"""The settings of the Kubernetes programs, and the cluster's volumes."""

from __future__ import annotations

import json
from pathlib import Path

ADMIN_TOKEN = "administrator"
VOLUMES_OF_A_NODE = {"1Gi": 3, "5Gi": 6, "10Gi": 2, "500Gi": 2}


def kubeconfig(api: str, authority: Path) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "t", "cluster": {"server": api, "certificate-authority": str(authority)}}
            ],
            "users": [{"name": "admin", "user": {"token": ADMIN_TOKEN}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "admin"}}],
            "current-context": "t",
        }
    )


def proxy_settings(account: Path) -> str:
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "bindAddress": "10.244.0.1",
            "clusterCIDR": "10.244.0.0/16",
            "clientConnection": {"kubeconfig": str(account)},
            "hostnameOverride": "node-1",
            "healthzBindAddress": "127.0.0.1:16256",
            "metricsBindAddress": "127.0.0.1:16249",
            "conntrack": {
                "maxPerCore": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def kubelet_settings(folder: Path, sockets: Path, number: int, *, reserved_bytes: int) -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": f"10.244.0.{number}",
            "healthzBindAddress": f"10.244.0.{number}",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/odr{number}",
            "failSwapOn": False,
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "systemReserved": {"memory": str(reserved_bytes)},
            "containerRuntimeEndpoint": f"unix://{sockets}/{number}.sock",
            "resolvConf": "/etc/resolv.conf",
            "podLogsDir": str(folder / "logs"),
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            "evictionHard": {"memory.available": "50Mi"},
            # A full disk of the machine would let the kubelet delete images that nothing can pull again.
            "imageGCHighThresholdPercent": 100,
        }
    )


def container_settings(folder: Path, sockets: Path, number: int) -> str:
    """Return containerd's settings.

    `restrict_oom_score_adj` is set, because a machine without CAP_SYS_RESOURCE may not lower the
    OOM score of a container.
    """
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{folder}/containerd"
state = "{sockets}/containerd-{number}"
[grpc]
  address = "{sockets}/{number}.sock"
[{cri}]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [{cri}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.containerd.runtimes.runc.options]
      SystemdCgroup = false
  [{cri}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""


def network_settings(folder: Path, bridge: str, number: int) -> str:
    part = f"10.244.{number}"
    addresses = {
        "subnet": "10.244.0.0/16",
        "rangeStart": f"{part}.2",
        "rangeEnd": f"{part}.250",
        "gateway": "10.244.0.1",
    }
    plugin = {
        "type": "bridge",
        "bridge": bridge,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": str(folder / "addresses"),
            "ranges": [[addresses]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]})


def volumes(folder: Path, nodes: int) -> str:
    """Return a default storage class, and local volumes in folders, whose group the kubelet sets to
    a pod's fsGroup.
    """
    items: list[object] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "standard",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for number in range(1, nodes + 1):
        for size, count in VOLUMES_OF_A_NODE.items():
            for index in range(count):
                name = f"node-{number}-{size.lower()}-{index}"
                (folder / name).mkdir(parents=True, exist_ok=True)
                items.append(_volume(name, folder / name, size, number))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _volume(name: str, place: Path, size: str, number: int) -> object:
    own = {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"node-{number}"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "standard",
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(place)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [own]}]}},
        },
    }
