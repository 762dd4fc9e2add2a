"""Packages that are missing or do not fit each other, and extensions that cannot be built."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, SYMPTOM, told

_EXTENSION = "https://github.com/pytorch/pytorch/blob/main/torch/utils/cpp_extension.py"
_NVCC = "https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/index.html"
_IMPORT = "https://docs.python.org/3/reference/import.html"
_PIP = "https://packaging.python.org/en/latest/guides/installing-using-pip-and-virtual-environments/"
_PROTOBUF = "https://protobuf.dev/news/2022-05-06/"
_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/main/src/transformers/utils/versions.py"
_start = partial(told, about="start-up", weight=LIKELY)
_BUILD = "An extension could not be built: check the compiler, CUDA_HOME and that nvcc fits torch's CUDA."
_VERSIONS = "Packages of versions that do not fit each other are installed."

_NO_NOTICE = r"^(?:(?!warn|\b(?:info|debug)\b|not available|not installed).)*"
"""The start of a line that is not the notice of a program that goes on without a module."""
NO_MODULE = rf"{_NO_NOTICE}(?:Error: |python[\d.]*: )No module named "

SPELLINGS = (
    *(  # torch itself, in contrast to a module that its version does not have
        told(pattern, "sw-torch-missing launch-probe-missing sw-packages-differ", about="start-up", source=_IMPORT)
        for pattern in (
            r"No module named '?torch'?(?:\W*$|\)|; )(?!.*is not a package)",
            r"python[\d.]*: No module named torch\.distributed\s*$",
        )
    ),
    _start(
        r"No module named '?(?!torch\._C)[\w.]+'?; '?(?!torch\._C)\w+'? is not a package",
        source=_IMPORT,
        says="A file beside the script has the name of a package, which it hides. Rename the file.",
    ),
    *(
        _start(
            pattern,
            weight=weight,
            source=_IMPORT,
            says="A Python module is missing in the job's environment.",
            unless=r"'?etcd",
        )
        for pattern, weight in ((NO_MODULE, LIKELY), (r"(?<!initialize NumPy: )No module named ", HINT))
    ),
    _start(
        r"RuntimeError: Numpy is not available",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/utils/tensor_numpy.cpp",
        says="numpy is missing in the job's environment, or torch was built for another version of it.",
    ),
    _start(
        rf"{_NO_NOTICE}ImportError: ",
        weight=SYMPTOM,
        source=_IMPORT,
        says="A Python module could not be loaded.",
        unless=r"undefined symbol: nccl",
    ),
    *(
        _start(pattern, weight=weight, source=source, says=_BUILD)
        for pattern, weight, source in (
            (r"ninja: build stopped", SYMPTOM, _EXTENSION),
            (r"nvcc fatal\s*: ", LIKELY, _NVCC),
            (r"unable to execute '\S*(?:nvcc|gcc|g\+\+|c\+\+|cc)'", LIKELY, _EXTENSION),
            (r"No such file or directory: '\S*(?:nvcc|gcc|g\+\+|c\+\+|ninja)'", LIKELY, _EXTENSION),
            (r"Error compiling objects for extension", SYMPTOM, _EXTENSION),
            (r"error: subprocess-exited-with-error", SYMPTOM, _PIP),
            (r"has no attribute 'ds_opt_adam'", LIKELY, _EXTENSION),
            (r"fatal error: \S+\.(?:h|hpp|cuh): No such file", LIKELY, _EXTENSION),
        )
    ),
    *(
        _start(pattern, source=source, says=_VERSIONS)
        for pattern, source in (
            (r"DistributionNotFound", _PIP),
            (r"pkg_resources\.(?:Contextual)?VersionConflict", _PIP),
            (r"PackageNotFoundError", _PIP),
            (r"is required for a normal functioning of this module", _TRANSFORMERS),
            (r"Descriptors cannot (?:not )?be created directly", _PROTOBUF),
            (r"compiled using NumPy 1\.x cannot be run", "https://numpy.org/doc/stable/numpy_2_0_migration_guide.html"),
            (
                r"numpy\.\w+ size changed, may indicate binary",
                "https://numpy.org/doc/stable/user/troubleshooting-importerror.html",
            ),
            (r"ImportError: .*(?:requires|is required|please install|to be installed|not installed)", _TRANSFORMERS),
        )
    ),
)
