"""Containers that do not start: Docker, Singularity or Apptainer, enroot."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import LIKELY, told

_DOCKER = "https://docs.docker.com/engine/daemon/troubleshoot/"
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
_SINGULARITY = "https://apptainer.org/docs/user/latest/"
_ENROOT = "https://github.com/NVIDIA/enroot/tree/master/src"
_start = partial(told, about="start-up")
_NO_TOOLKIT = "gpu-none-visible launch-failed"
_IMAGE = "The image cannot be loaded: check its name, the login to the registry, and the node's way to it."
_NAME = "A container of this name runs already, or was left behind: docker ps -a."

SPELLINGS = (
    # NVIDIA's container toolkit is not installed or not known to Docker
    _start(r"could not select device driver .*with capabilities: \[\[.*gpu", _NO_TOOLKIT, source=_TOOLKIT),
    _start(r"[Uu]nknown (?:or invalid )?runtime (?:name|specified):? \"?nvidia", _NO_TOOLKIT, source=_TOOLKIT),
    _start(r"nvidia-container-runtime-hook\W.*(?:not found|no such file)", _NO_TOOLKIT, source=_TOOLKIT),
    _start(r"failed to (?:discover|get) GPU vendor from CDI", _NO_TOOLKIT, source=_TOOLKIT),
    _start(r"executable file not found in \$PATH.*nvidia-container", _NO_TOOLKIT, source=_TOOLKIT),
    # folders that are mounted
    *(
        _start(pattern, "storage-path-missing launch-failed", source=source)
        for pattern, source in (
            (r"mount source \S+ doesn't exist", _SINGULARITY),
            (r"bind source path does not exist", _DOCKER),
            (r"enroot-mount: failed to mount: .*(?:No such file|Permission denied)", _ENROOT),
        )
    ),
    # Singularity and Apptainer
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_SINGULARITY)
        for pattern in (
            r"FATAL:\s+(?:while|container creation failed|could not open image|image |failed to|unable to|couldn't)",
            r"container creation failed: ",
            r"ERROR\s*: (?:Unknown image format|Failed to (?:mount|open|create|set)|No valid /bin/sh)",
            r"FATAL ERROR: ?\S* ?Can't find a valid SQUASHFS",
        )
    ),
    # enroot
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_ENROOT)
        for pattern in (
            r"enroot-\w+: failed to ",
            r"\[ERROR\] (?:No such file or directory: \S+\.sqsh|File already exists: \S+\.sqsh|Could not process JSON)",
            r"\[ERROR\] URL https?://\S+ returned error code",
            r"\[ERROR\] (?:Invalid image format|No such container|Command not found):? ",
        )
    ),
    # Docker
    *(
        _start(pattern, weight=LIKELY, source=_DOCKER, says=_IMAGE)
        for pattern in (
            r"pull access denied for",
            r"manifest for \S+ not found",
            r"manifest unknown",
            r"repository does not exist or may require 'docker login'",
            r"toomanyrequests: ",
            r"no matching manifest for",
        )
    ),
    _start(r"The container name \"\S+\" is already in use", weight=LIKELY, source=_DOCKER, says=_NAME),
    *(
        _start(
            pattern, weight=LIKELY, source=_DOCKER, says="Docker refused the command: the rest of the line says why."
        )
        for pattern in (
            r"Error response from daemon: ",
            r"Cannot connect to the Docker daemon",
            r"permission denied while trying to connect to the Docker daemon",
        )
    ),
)
