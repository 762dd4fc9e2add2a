"""What Kubernetes says about pods: images, scheduling, containers, the service mesh."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_KUBERNETES = "https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/"
_CONTAINER = "https://github.com/opencontainers/runc/blob/main/libcontainer/init_linux.go"
_REFUSED = "Kubernetes refused the request: a quota, a permission, an admission rule, or a missing resource type."
_VOLUME = "Kubernetes cannot give the pod its volume: kubectl describe pod and the claim (kubectl get pvc) show why."
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
    *(
        _start(pattern, weight=LIKELY, source=_KUBERNETES, says="Kubernetes could not load the container's image.")
        for pattern in (r"ErrImageNeverPull", r"InvalidImageName", r"ErrImage(?:Inspect|Load)")
    ),
    *(
        _start(pattern, weight=LIKELY, source=_KUBERNETES, says=_REFUSED)
        for pattern in (
            r"Error from server \((?:Forbidden|NotFound|BadRequest|Invalid|AlreadyExists|Conflict|InternalError|Unauthorized)",
            r"admission webhook \S+ denied the request",
            r"is forbidden: (?:exceeded quota|violates|User |unable to)",
            r"no matches for kind",
            r"\"? is invalid: (?:spec|metadata)\.",
            r"error validating data",
            r"quota exceeded for .*(?:gpu|cpu|memory)",
        )
    ),
    *(
        _start(pattern, weight=LIKELY, source=_KUBERNETES, says=_VOLUME)
        for pattern in (
            r"MountVolume\.\w+ failed for volume",
            r"Unable to attach or mount volumes",
            r"\bFailedMount\b",
            r"FailedAttachVolume",
            r"persistentvolumeclaim \"\S+\" not found",
            r"unbound immediate PersistentVolumeClaims",
        )
    ),
    _start(
        r"FailedCreatePodSandBox",
        weight=LIKELY,
        source=_KUBERNETES,
        says="Kubernetes could not set up the pod's network: look at the CNI's pods on this node.",
    ),
    _start(
        r"RunContainerError",
        source=_KUBERNETES,
        says="Kubernetes could not start the container: kubectl describe pod shows why.",
    ),
    _start(
        r"\bCrashLoopBackOff\b",
        weight=CONSEQUENCE,
        source=_KUBERNETES,
        says="A container failed several times. The cause is in its log: kubectl logs --previous.",
    ),
    _start(
        r"(?:Readiness|Liveness|Startup) probe (?:failed|errored)",
        weight=CONSEQUENCE,
        source=_KUBERNETES,
        says="The program in the pod does not answer: it still starts, hangs, or has ended. Its log tells more.",
    ),
    _start(
        r"INSTALLATION FAILED: ",
        source="https://helm.sh/docs/faq/troubleshooting/",
        says="Helm could not install the chart.",
    ),
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
