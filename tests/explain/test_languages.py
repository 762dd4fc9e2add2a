"""errno and signals in other languages than English, and Windows' numbers."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("RuntimeError: 地址已在使用", "net-port-in-use"),
        ("(errno: 98 - Die Adresse wird bereits verwendet).", "net-port-in-use"),
        ("OSError: [Errno 98] Adresse déjà utilisée", "net-port-in-use"),
        ("OSError: [Errno 98] La dirección ya se está usando", "net-port-in-use"),
        ("[Errno 98] アドレスは既に使用中です", "net-port-in-use"),
        ("[Errno 98] Адрес уже используется", "net-port-in-use"),
        ("connect failed: 拒绝连接", "net-master-refused"),
        ("connect: Verbindungsaufbau abgelehnt", "net-master-refused"),
        ("connect: в соединении отказано", "net-master-refused"),
        ("[Errno 113] 没有到主机的路由", "net-master-unreachable"),
        ("[Errno 113] Aucun chemin d'accès pour atteindre l'hôte cible", "net-master-unreachable"),
        ("[Errno 101] 网络不可达", "net-master-unreachable"),
        ("[Errno 99] 无法指定被请求的地址", "env-master-addr-not-rank0-host"),
        ("getaddrinfo: 未知的名称或服务", "env-master-addr-unresolvable"),
        ("[Errno 28] 设备上没有空间", "host-disk-full"),
        ("[Errno 12] 无法分配内存", "host-memory-low"),
        ("[Errno 24] 打开的文件过多", "host-nofile"),
        ("run.sh: line 3: 123 总线错误 (core dumped) python a.py", "host-shm-too-small"),
        ("OSError: [WinError 10048] x", "net-port-in-use"),
        ("OSError: [WinError 10049] x", "env-master-addr-not-rank0-host"),
        ("OSError: [WinError 10013] x", "net-bind-failed"),
        ("TimeoutError: [WinError 10060] x", "net-master-unreachable"),
        ("ConnectionRefusedError: [WinError 10061] x", "net-master-refused"),
        ("OSError: [WinError 1455] x", "host-memory-low"),
        # names and pings
        ("sudo: unable to resolve host n1: Name or service not known", "host-own-name-unresolvable"),
        ("connect: nodename nor servname provided, or not known", "env-master-addr-unresolvable"),
        ("From 10.0.0.1 icmp_seq=1 Destination Host Unreachable", "net-master-unreachable"),
        ("3 packets transmitted, 0 received, 100% packet loss, time 2000ms", "net-master-unreachable"),
    ],
)
def test_an_error_in_another_language_names_the_same_rule(line, rule):
    assert rules(f"{HEALTHY}{line}\n{HEALTHY}")[0] == rule


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("run.sh:行 3: 123 已杀死               python a.py", "process killed"),
        ("run.sh: Zeile 3: 123 Getötet   python a.py", "process killed"),
        ("段错误 (核心已转储)", "application"),
        ("ConnectionResetError: [WinError 10054] x", "application"),
    ],
)
def test_a_signal_in_another_language_has_its_class(line, about):
    answered = found(f"{HEALTHY}{line}\n{HEALTHY}")
    assert not answered.causes
    assert answered.about == about


@pytest.mark.parametrize(
    "line",
    [
        "sample 7: 当服务器拒绝连接的时候请联系管理员",  # a training sample
        "sample 8: 他把敌人已杀死在那里",
        "redis.exceptions.ConnectionError: Error 111 connecting to n1:6379. 拒绝连接",
        "[WinError 100480] x",
    ],
)
def test_data_in_another_language_names_no_rule(line):
    assert not rules(line)
