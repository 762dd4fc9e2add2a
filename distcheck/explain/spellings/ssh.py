"""ssh, pdsh, their relatives and the ssh libraries of Python: a node that the launcher cannot reach or log in to."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, SYMPTOM, told

_SSH = "https://man.openbsd.org/ssh"
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py"
_PDSH = "https://github.com/chaos/pdsh/tree/master/src"
_PARAMIKO = "https://docs.paramiko.org/en/stable/api/ssh_exception.html"
_ASYNCSSH = "https://asyncssh.readthedocs.io/en/latest/api.html#exceptions"
_start = partial(told, about="start-up")
_UNREACHABLE = "launch-node-unreachable launch-failed"
_PACKETS = "https://github.com/openssh/openssh-portable/blob/master/packet.c"
_CONFIG = "https://github.com/openssh/openssh-portable/blob/master/readconf.c"
_KEYS = "https://github.com/openssh/openssh-portable/blob/master/sshconnect2.c"
_HOST_KEY = "https://github.com/openssh/openssh-portable/blob/master/sshconnect.c"
_PDSH_MODULES = "https://github.com/chaos/pdsh/tree/master/src/modules"
_PSSH = "https://github.com/lilydjwg/pssh"
_CLUSH = "https://clustershell.readthedocs.io/en/latest/tools/clush.html"
_ANSIBLE = "https://docs.ansible.com/ansible/latest/network/user_guide/network_debug_troubleshooting.html"

SPELLINGS = (
    _start(
        r"ssh: Could not resolve hostname (?P<host>[^:\s]+)",
        "k8s-dns-not-ready launch-node-unreachable",
        source=_SSH,
        near=r"\.svc\b|mpijob|mpi-operator|-worker-\d+\.|-launcher",
    ),
    _start(
        r"ssh: Could not resolve hostname (?P<host>[^:\s]+)",
        "launch-node-unreachable k8s-dns-not-ready",
        source=_SSH,
        unless=r"\.svc\b|mpijob|mpi-operator|-worker-\d+\.|-launcher",
    ),
    _start(r"ssh: connect to host (?P<host>\S+) port \d+: ", _UNREACHABLE, source=_SSH),
    _start(r"Permission denied \((?:publickey|password|keyboard|gssapi|hostbased)", _UNREACHABLE, source=_SSH),
    _start(r"Permission denied, please try again", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(r"Host key verification failed", _UNREACHABLE, source=_SSH),
    _start(r"REMOTE HOST IDENTIFICATION HAS CHANGED", _UNREACHABLE, source=_SSH),
    _start(r"Bad owner or permissions on \S*ssh", _UNREACHABLE, source=_SSH),
    _start(r"Too many authentication failures", _UNREACHABLE, source=_SSH),
    _start(r"Unable to negotiate with \S+ port", _UNREACHABLE, source=_SSH),
    _start(r"(?:kex|ssh)_exchange_identification", _UNREACHABLE, source=_SSH),
    _start(r"ssh exited with exit code 255", _UNREACHABLE, source=_SSH),
    _start(r"Connection closed by \S+ port 22\b", _UNREACHABLE, source=_SSH),
    _start(r"returned non-zero exit status 255", _UNREACHABLE, source=_SSH, near=r"\bssh\b"),
    _start(r"was not reachable via ssh", _UNREACHABLE, source=_DEEPSPEED),
    _start(r"ssh_askpass: exec\(", _UNREACHABLE, source=_SSH),
    _start(r"Load key \"[^\"]+\": (?:invalid format|bad permissions|Permission denied)", _UNREACHABLE, source=_SSH),
    _start(r"Permissions \d+ for '[^']+' are too open", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(r"Connection reset by \S+ port \d+", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(r"Connection to \S+ closed by remote host", _UNREACHABLE, weight=SYMPTOM, source=_SSH),
    _start(r"Connection to \S+ port \d+ timed out", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(r"client_loop: send disconnect", _UNREACHABLE, weight=SYMPTOM, source=_SSH),
    _start(r"Timeout, server \S+ not responding", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(
        r"Disconnected from (?:authenticating )?(?:user \S+ )?\S+ port \d+", _UNREACHABLE, weight=SYMPTOM, source=_SSH
    ),
    _start(r"channel \d+: open failed: ", _UNREACHABLE, source=_SSH),
    _start(r"stdio forwarding failed", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(r"no matching (?:host key type|key exchange method|cipher|MAC) found", _UNREACHABLE, source=_SSH),
    _start(r"[Uu]nable to connect to \S+ port 22\b", _UNREACHABLE, source=_PARAMIKO),
    _start(r"WARNING: UNPROTECTED PRIVATE KEY FILE", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(r"Identity file \S+ not accessible", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(r"Unable to open connection to host", _UNREACHABLE, weight=LIKELY, source=_SSH),
    _start(r"ssh: Connection (?:closed|reset|timed out)", _UNREACHABLE, weight=LIKELY, source=_SSH),
    # pdsh, whose modules and remote commands are files of its own
    _start(r"\bgethostbyname\(\"[^\"]+\"\) failed", _UNREACHABLE, source=_PDSH),
    _start(r"\brcmd: (?:socket|connect|\S+: (?:Permission denied|Connection|No route))", _UNREACHABLE, source=_PDSH),
    *(
        _start(pattern, "launch-failed", source=_PDSH)
        for pattern in (
            r"symbol lookup error: \S*/pdsh/",
            r"pdsh@\S+: Can't find module",
            r"pdsh@\S+: module path .* insecure",
            r"pdsh\"?: Owner not root",
            r"No such rcmd module",
            r"pdsh@\S+: no remote hosts specified",
        )
    ),
    # Python: Fabric and ColossalAI use paramiko, others asyncssh
    _start(r"paramiko\.ssh_exception\.\w+", _UNREACHABLE, weight=LIKELY, source=_PARAMIKO),
    _start(
        r"asyncssh\.(?:misc\.)?(?:PermissionDenied|ConnectionLost|HostKeyNotVerifiable|KeyExchangeFailed)",
        _UNREACHABLE,
        weight=LIKELY,
        source=_ASYNCSSH,
    ),
    _start(r"SSHException: ", _UNREACHABLE, weight=LIKELY, source=_PARAMIKO),
    _start(r"AuthenticationException: ", _UNREACHABLE, weight=LIKELY, source=_PARAMIKO, near=r"paramiko|fabric|ssh"),
    *(
        _start(pattern, _UNREACHABLE, weight=LIKELY, source=source)
        for pattern, source in (
            (r"Connection (?:closed|reset) by \S+ port \d+\b(?! \[preauth)", _PACKETS),
            (r"ssh_dispatch_run_fatal: ", _PACKETS),
            (r"Connection to \S+ port \d+ timed out", _PACKETS),
            (r"Connection timed out during banner exchange", _PACKETS),
            (r"\bbanner exchange: Connection", _PACKETS),
            (r"Timeout, server \S+ not responding", _PACKETS),
            (r"mux_client_(?:request_session|hello_exchange): ", _PACKETS),
            (r"Received disconnect from \S+ port \d+:\d+: (?!disconnected by user)", _PACKETS),
            (r"sign_and_send_pubkey: (?:signing failed|no mutual)", _KEYS),
            (r"No more authentication methods to try", _KEYS),
            (r"Permissions \d+ for '\S+' are too open", _KEYS),
            (r"The authenticity of host '", _HOST_KEY),
            (r"No \S+ host key is known for", _HOST_KEY),
            (r"Bad configuration option: ", _CONFIG),
            (r"terminating, \d+ bad configuration options", _CONFIG),
            (r"\bmcmd: connect failed", _PDSH_MODULES),
            (r"pdsh@\S+: \S+: (?:connect|rcmd|mcmd|read|krb)\S*:? ", _PDSH_MODULES),
            (r"pdsh@\S+: \S+: command timeout", _PDSH_MODULES),
            (r"NoValidConnectionsError", _PARAMIKO),
            (r"Error reading SSH protocol banner", _PARAMIKO),
            (r"Unable to connect to port 22 on", _PARAMIKO),
            (
                r"check (?:the |your )?(?:passwordless |password-less )?ssh (?:connection|access|config|key|setup)",
                _PARAMIKO,
            ),
            (r"password-?less ssh\b.{0,60}\b(?:not|fail|required|must|need|please|set ?up)", _PARAMIKO),
            (r"clush: \S+: exited with exit code 255", _CLUSH),
            (r"\[FAILURE\] \S+ Exited with error code 255", _PSSH),
            (r"UNREACHABLE! => ", _ANSIBLE),
            (r"Failed to connect to the host via ssh", _ANSIBLE),
        )
    ),
    _start(r"no such identity: \S+: No such file", _UNREACHABLE, weight=SYMPTOM, source=_KEYS),
    _start(r"\S+@\S+'s password:", _UNREACHABLE, weight=HINT, source=_KEYS),
    _start(r"Enter passphrase for key '", _UNREACHABLE, weight=HINT, source=_KEYS),
)
