"""Folders that cannot be written, and file systems that have failed, in the words of Python, tools, Rust, Go and Node.js.

Words: strerror() of glibc; std::io::Error of Rust; fs.PathError of Go; libuv of Node.js; coreutils.
"""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import LIKELY, SYMPTOM, told

_PYTHON = "https://docs.python.org/3/library/exceptions.html#PermissionError"
_COREUTILS = "https://www.gnu.org/software/coreutils/manual/html_node/mkdir-invocation.html"
_RUST = "https://doc.rust-lang.org/std/io/enum.ErrorKind.html"
_LIBUV = "https://nodejs.org/api/errors.html#common-system-errors"
_GO = "https://pkg.go.dev/io/fs#PathError"
_FUSE = "https://man7.org/linux/man-pages/man3/errno.3.html"
_host = partial(told, about="start-up")
_DENIED = "storage-read-only storage-path-missing"
_HANGS = "storage-hangs storage-path-missing"
_FOLDER = r"/(?!dev/|proc/|sys/|run/|var/run/|bin/|sbin/|usr/s?bin/|etc/)"
"""Paths of files that a job writes, in contrast to devices, programs and what belongs to root."""
_WRITTEN = (
    r"(?:cache|te?mp|logs?|outputs?|out|results?|runs?|check-?points?|ckpts?|saved?|work_?dirs?|exp(?:eriment)?s?|wandb"
    r"|locks?|lightning_logs|tensorboard|triton|torch_extensions|nltk_data|datasets?_cache|site-packages|dist-packages)\b"
)
"""Names of folders and files that a program writes."""
_EXECUTED = r"_execute_child|subprocess\.py|posix_spawn|os\.exec|Popen\("
_TOOLS = r"\b(?:mkdir|touch|cp|mv|tee|ln|install|rsync|tar|mktemp|chmod|chown):"

SPELLINGS = (
    # Python.
    _host(
        rf"PermissionError: \[Errno 13\] Permission denied: b?['\"]{_FOLDER}(?:\S*[/_.-])?{_WRITTEN}",
        _DENIED,
        weight=SYMPTOM,
        source=_PYTHON,
        unless=rf"{_EXECUTED}|SemLock|os\.(?:chdir|listdir|scandir|getcwd)\(|socket|ssh",
    ),
    _host(r"^\s*\[Errno 13\] Permission denied: *(?:b?['\"]/|$)", _DENIED, weight=SYMPTOM, source=_PYTHON),
    # Tools.
    _host(
        rf"{_TOOLS} .*['\"\u2018`]?{_FOLDER}\S*: Permission denied",
        _DENIED,
        weight=SYMPTOM,
        source=_COREUTILS,
        unless=r"sshd",
    ),
    _host(
        r"(?:sh|line \d+|\d+): /\S+\.(?:log|out|err|txt|json|csv|tmp): Permission denied",
        _DENIED,
        weight=LIKELY,
        source=_COREUTILS,
    ),
    # Rust, Go, Node.js.
    _host(r"\bkind: PermissionDenied\b", _DENIED, weight=SYMPTOM, source=_RUST, near=r"serializ|writ|sav|creat|cache"),
    _host(r"\bkind: ReadOnlyFilesystem\b", "storage-read-only", weight=LIKELY, source=_RUST),
    _host(r"\bEACCES: permission denied, (?:mkdir|open|copyfile|rename)\b", _DENIED, weight=LIKELY, source=_LIBUV),
    _host(r"\bEROFS: read-only file system", "storage-read-only", weight=LIKELY, source=_LIBUV),
    _host(r"\b(?:mkdir|create|rename) /\S+: permission denied\b", _DENIED, weight=SYMPTOM, source=_GO),
    # A mount of FUSE whose process has ended; sockets have the same error.
    *(
        _host(pattern, _HANGS, weight=LIKELY, source=_FUSE)
        for pattern in (
            r"Transport endpoint is not connected: b?['\"]",
            r"cannot (?:access|open|stat|create \w+|touch) ['\"\u2018`]?/\S+: Transport endpoint is not connected",
            r"\bkind: (?:NotConnected|StaleNetworkFileHandle)\b.*(?:endpoint|Stale)",
        )
    ),
)
