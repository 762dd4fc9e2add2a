"""What Kubernetes says about pods: images, scheduling, containers, devices, volumes, names, the service mesh."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_KUBERNETES = "https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/"
_CONTAINER = "https://github.com/opencontainers/runc/blob/main/libcontainer/init_linux.go"
_REFUSED = "Kubernetes refused the request: a quota, a permission, an admission rule, or a missing resource type."
_VOLUME = "Kubernetes cannot give the pod its volume: kubectl describe pod and the claim (kubectl get pvc) show why."
_start = partial(told, about="start-up")
_ENVOY = "https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage#response-flags"
_ISTIO = "https://istio.io/latest/docs/ops/common-problems/"
_LINKERD = "https://linkerd.io/2/tasks/troubleshooting/"
_KUBELET = "https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/cm/devicemanager/manager.go"
_OPERATOR = "https://github.com/kubeflow/trainer/blob/release-1.9/pkg/config/config.go"
_SCHEDULING = "https://kubernetes.io/docs/concepts/scheduling-eviction/"
_VOLUMES = "https://kubernetes.io/docs/concepts/storage/persistent-volumes/"
_QUOTA = "https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/"
_net = partial(told, about="network")
_DNS = "k8s-dns-not-ready env-master-addr-unresolvable"
_PENDING = "Kubernetes has no node with what the pod requests, or the queue has no quota for it: kubectl describe pod."
_SANDBOX = "Kubernetes could not set up the pod's network: look at the CNI's pods on this node."
_NODE_LOST = "Kubernetes lost the pod's node, or took the pod away. Start the job again, and look at the node."

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
    *(
        _net(pattern, "k8s-istio-sidecar", weight=weight, source=source)
        for pattern, weight, source in (
            (r"filter_chain_not_found", LIKELY, _ENVOY),
            (r"upstream_reset_before_response_started", LIKELY, _ENVOY),
            (r"\bno healthy upstream\b", LIKELY, _ENVOY),
            (r"RBAC: access denied", LIKELY, _ISTIO),
            (r"Envoy proxy is NOT ready", SYMPTOM, _ISTIO),
            (r"\bistio-(?:proxy|init)\b.{0,80}\b(?:error|fail|refused|reset|terminat)", SYMPTOM, _ISTIO),
            (r"\blinkerd-(?:proxy|init)\b.{0,80}\b(?:error|fail|refused|reset|terminat)", SYMPTOM, _LINKERD),
        )
    ),
    # names of pods and of their headless services
    *(
        _net(pattern, _DNS, weight=LIKELY, source=_OPERATOR)
        for pattern in (
            r"waiting for (?:master|launcher|worker)\S* (?:DNS|pod|to be (?:ready|resolv))",
            r"lookup \S*-(?:master|worker|launcher|head|ps|chief)\S* on \S+: no such host",
            r"Could not resolve host(?:name)?:? \S*(?:\.svc\b|-(?:master|worker|launcher)-\d)",
            r"Failed to resolve '?\S*(?:\.svc\b|-(?:master|worker)-\d)",
            r"can(?:not|'t) resolve '?\S*-(?:master|worker|launcher|head)\b",
            r"server can't find \S*(?:\.svc\b|-(?:master|worker|launcher|head)\S*): (?:NXDOMAIN|SERVFAIL)",
        )
    ),
    # GPUs that the kubelet cannot give to a pod
    *(
        _start(pattern, "gpu-fewer-than-needed", weight=LIKELY, source=_KUBELET)
        for pattern in (
            r"UnexpectedAdmissionError",
            r"requested number of devices unavailable for",
            r"no healthy devices present; cannot allocate unhealthy devices",
            r"Insufficient (?:amd|gpu|habana|aws\.amazon)\.(?:com|ai)/",
        )
    ),
    # what no rule names
    *(
        _start(pattern, weight=LIKELY, source=source, says=says)
        for pattern, source, says in (
            (r"\d+/\d+ nodes are available: ", _SCHEDULING, _PENDING),
            (r"Pod didn't trigger scale-up", _SCHEDULING, _PENDING),
            (r"couldn't assign flavors to pod set", _QUOTA, _PENDING),
            (r"\bpod ?group\b.{0,60}\b(?:not ready|unschedulable|not enough)", _SCHEDULING, _PENDING),
            (r"failed to (?:create|set ?up) (?:pod )?(?:sandbox|network for sandbox)", _KUBERNETES, _SANDBOX),
            (r"networkPlugin cni failed", _KUBERNETES, _SANDBOX),
            (r"plugin type=\"\S+\".{0,40}failed \((?:add|delete)\)", _KUBERNETES, _SANDBOX),
            (r"timed out waiting for the condition.{0,80}\b(?:volume|mount)", _VOLUMES, _VOLUME),
            (r"Multi-Attach error for volume", _VOLUMES, _VOLUME),
        )
    ),
    *(
        told(pattern, about="process killed", weight=LIKELY, source=_SCHEDULING, says=_NODE_LOST)
        for pattern in (
            r"TaintManagerEviction",
            r"\bNodeNotReady\b",
            r"Node is not ready",
            r"DisruptionTarget",
            r"Preempted by (?:a )?pod",
            r"The pod was (?:terminated|rejected) (?:in response|because)",
        )
    ),
    told(
        r"BackoffLimitExceeded",
        about="application",
        weight=CONSEQUENCE,
        source=_KUBERNETES,
        says="The pods of the job failed several times. The cause is in their logs: kubectl logs --previous.",
    ),
    told(
        r"Job has reached the specified backoff limit",
        about="application",
        weight=CONSEQUENCE,
        source=_KUBERNETES,
        says="The pods of the job failed several times. The cause is in their logs: kubectl logs --previous.",
    ),
    _net(r"wait-gcs-ready: .*Waiting for GCS", "k8s-dns-not-ready", weight=HINT, source=_KUBERNETES),
)
