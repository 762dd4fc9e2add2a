"""A node that ssh, pdsh and their relatives do not reach or log in to, beside the messages in ssh.py."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import HINT, LIKELY, SYMPTOM, told

_SSH = "https://github.com/openssh/openssh-portable/blob/master/packet.c"
_CONFIG = "https://github.com/openssh/openssh-portable/blob/master/readconf.c"
_KEYS = "https://github.com/openssh/openssh-portable/blob/master/sshconnect2.c"
_HOST_KEY = "https://github.com/openssh/openssh-portable/blob/master/sshconnect.c"
_PDSH = "https://github.com/chaos/pdsh/tree/master/src/modules"
_PARAMIKO = "https://docs.paramiko.org/en/stable/api/ssh_exception.html"
_PSSH = "https://github.com/lilydjwg/pssh"
_CLUSH = "https://clustershell.readthedocs.io/en/latest/tools/clush.html"
_ANSIBLE = "https://docs.ansible.com/ansible/latest/network/user_guide/network_debug_troubleshooting.html"
_start = partial(told, about="start-up")
_UNREACHABLE = "launch-node-unreachable launch-failed"

SPELLINGS = (
    *(
        _start(pattern, _UNREACHABLE, weight=LIKELY, source=source)
        for pattern, source in (
            (r"Connection (?:closed|reset) by \S+ port \d+\b(?! \[preauth)", _SSH),
            (r"ssh_dispatch_run_fatal: ", _SSH),
            (r"Connection to \S+ port \d+ timed out", _SSH),
            (r"Connection timed out during banner exchange", _SSH),
            (r"\bbanner exchange: Connection", _SSH),
            (r"Timeout, server \S+ not responding", _SSH),
            (r"mux_client_(?:request_session|hello_exchange): ", _SSH),
            (r"Received disconnect from \S+ port \d+:\d+: (?!disconnected by user)", _SSH),
            (r"sign_and_send_pubkey: (?:signing failed|no mutual)", _KEYS),
            (r"No more authentication methods to try", _KEYS),
            (r"Permissions \d+ for '\S+' are too open", _KEYS),
            (r"The authenticity of host '", _HOST_KEY),
            (r"No \S+ host key is known for", _HOST_KEY),
            (r"Bad configuration option: ", _CONFIG),
            (r"terminating, \d+ bad configuration options", _CONFIG),
            (r"\bmcmd: connect failed", _PDSH),
            (r"pdsh@\S+: \S+: (?:connect|rcmd|mcmd|read|krb)\S*:? ", _PDSH),
            (r"pdsh@\S+: \S+: command timeout", _PDSH),
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
