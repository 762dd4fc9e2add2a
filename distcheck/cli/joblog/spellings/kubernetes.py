"""What Kubernetes says about pods: images, scheduling, containers, the service mesh."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_KUBERNETES = "https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/"
_CONTAINER = "https://github.com/opencontainers/runc/blob/main/libcontainer/init_linux.go"
_start = partial(told, about="start-up")

SPELLINGS = (
    _start(r"ImagePullBackOff", source=_KUBERNETES, says="Kubernetes could not load the container's image."),
    _start(r"ErrImagePull", source=_KUBERNETES, says="Kubernetes could not load the container's image."),
    _start(
        r"CreateContainer(?:Config)?Error",
        source=_KUBERNETES,
        says="Kubernetes could not create the container: kubectl describe pod shows why.",
    ),
    _start(
        r"is waiting to start: (?:PodInitializing|ContainerCreating)",
        weight=SYMPTOM,
        source=_KUBERNETES,
        says="The pod is not yet started: kubectl describe pod shows what it waits for.",
    ),
    _start(r"Insufficient nvidia\.com/gpu", "gpu-fewer-than-needed", weight=LIKELY, source=_KUBERNETES),
    _start(r"FailedScheduling", source=_KUBERNETES, says="Kubernetes has no node with what the pod requests."),
    _start(
        r"upstream connect error or disconnect/reset before headers",
        "k8s-istio-sidecar",
        about="network",
        source="https://istio.io/latest/docs/ops/common-problems/network-issues/",
    ),
    _start(
        r"exec format error",
        weight=LIKELY,
        source=_CONTAINER,
        says="The program or image is built for another processor architecture.",
    ),
    _start(
        r"Back-off restarting failed container",
        weight=CONSEQUENCE,
        source=_KUBERNETES,
        says="A container failed several times. The cause is in its log: kubectl logs --previous.",
    ),
)
