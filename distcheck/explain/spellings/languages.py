"""errno and signals in other languages than English, as glibc and Windows translate them, and Windows' numbers of errors.

Words: po/*.po of glibc 2.17 to 2.40. A word begins after the first letter where that letter has an upper case that ASCII lacks.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told
from distcheck.explain.spellings.names import WEB
from distcheck.explain.spellings.sockets import SERVICES

_GLIBC = "https://sourceware.org/git/?p=glibc.git;a=tree;f=po"
_WINSOCK = "https://learn.microsoft.com/windows/win32/winsock/windows-sockets-error-codes-2"
_SYSTEM = "https://learn.microsoft.com/windows/win32/debug/system-error-codes"
_OTHERS = rf"{SERVICES}|{WEB}|ssh: |ibv_|NCCL WARN"
_net = partial(told, about="network", weight=SYMPTOM, source=_GLIBC, unless=_OTHERS)
_win = partial(told, about="network", weight=SYMPTOM, source=_WINSOCK, unless=_OTHERS)
_AFTER = r"[:\uff1a\](-]\s?(?:\S{1,12}\s){0,3}\S?"
"""What stands before the words of errno; data that a script prints has them within sentences."""
_SHELL = r"(?:^|: |\d\s+)"
"""What a shell writes before the words of a signal: its script and line, and the process."""
_TAKEN = "net-port-in-use net-port-in-use-by-peer-job"
_REFUSED = "net-master-refused net-master-unreachable"
_UNREACHABLE = "net-master-unreachable net-firewall-ephemeral"
_NOT_OWN = "env-master-addr-not-rank0-host net-bind-failed"
_UNRESOLVED = "env-master-addr-unresolvable host-own-name-unresolvable"
_LOST = "A rank lost its connection to another rank, which ended first. The cause is in the log of the other rank."
_SIGKILL = "A process was ended by SIGKILL. Most often the host or its cgroup ran out of memory: look for OOM kills in the kernel log."
_SIGSEGV = (
    "A process crashed with SIGSEGV. Run it with python -X faulthandler, and compare the versions of its libraries."
)

SPELLINGS = (
    *(
        _net(_AFTER + words, _TAKEN, weight=LIKELY)
        for words in (
            "地址已在使用",
            "地址已被使用",
            "位址已(?:被|經在?)使用",
            "Adresse wird bereits verwendet",
            "Adresse déjà utilisée",
            "dirección ya se está usando",
            "アドレスは(?:既に|すでに)?使用中",
            "이미 사용 중인? ?주소",
            "дрес уже используется",
            "Endereço já em uso",
        )
    ),
    *(
        _net(_AFTER + words, _REFUSED)
        for words in (
            "(?:连接)?被?拒绝(?:连接|了我们的连接请求)",
            "连接被拒绝",
            "拒絕連線",
            "連線被拒絕",
            "Verbindungsaufbau abgelehnt",
            "Connexion refusée",
            "Conexión rehusada",
            "接続を拒否されました",
            "연결이 거부",
            "соединении отказано",
            "Conexão recusada",
        )
    ),
    *(
        _net(_AFTER + words, _UNREACHABLE)
        for words in (
            "没有到主机的路由",
            "沒有到主機的路由",
            "Keine Route zum Zielrechner",
            "chemin d'accès pour atteindre l'hôte",
            "ninguna ruta hasta el",
            "ホストへの経路がありません",
            "маршрута до (?:хоста|узла)",
            "Não há rota para o",
            "连接超时",
            "連線逾時",
            "Wartezeit für die Verbindung ist abgelaufen",
            "expiration du délai d'attente",
            "接続がタイムアウトしました",
            "ожидания соединения истекло",
        )
    ),
    *(
        _net(_AFTER + words, "net-master-unreachable net-ipv4-ipv6-mixed")
        for words in (
            "网络不可达",
            "網路(?:無法到達|不可達)",
            "Netzwerk ist nicht erreichbar",
            "réseau n'est pas accessible",
            "La red es inaccesible",
            "ネットワークに(?:到達でき|届き)ません",
            "еть недоступна",
        )
    ),
    *(
        _net(_AFTER + words, _NOT_OWN)
        for words in (
            "无法指定被请求的地址",
            "無法指定所要求的位址",
            "angeforderte Adresse kann nicht zugewiesen werden",
            "l'adresse demandée",
            "asignar la dirección solicitada",
            "要求(?:した|された)アドレス[をに]割り当て",
            "назначить запрошенный адрес",
        )
    ),
    *(
        _net(_AFTER + words, _UNRESOLVED)
        for words in (
            "未知的名称或服务",
            "未知的名稱或服務",
            "(?:域名|名称)解析(?:暂时失败|出现暂时性错误|时出现暂时性错误)",
            "Name oder (?:der )?Dienst (?:ist )?nicht bekannt",
            "Fehler bei der Namensauflösung",
            "Nom ou service inconnu",
            "temporaire dans la résolution du nom",
            "Nombre o servicio desconocido",
            "名前またはサービスが不明",
            "名前解決に一時的に失敗",
            "мя или служба не известны",
        )
    ),
    *(
        _net(_AFTER + words, "host-disk-full storage-full", about="start-up", unless="")
        for words in (
            "设备上没有空间",
            "裝置上已?[沒無]有?(?:多餘|剩餘)?空間",
            "kein Speicherplatz mehr verfügbar",
            "Aucun espace disponible sur le périphérique",
            "No queda espacio en el dispositivo",
            "デバイスに空き領域がありません",
            "не осталось свободного места",
        )
    ),
    *(
        _net(rf"^(?!.*(?:CUDA|GPU)).*{_AFTER}{words}", "host-memory-low", about="process killed", unless="")
        for words in (
            "无法分配内存",
            "無法(?:分配|配置)記憶體",
            "Nicht genügend Hauptspeicher verfügbar",
            "(?:allouer|d'allouer) de la mémoire",
            "No se pudo asignar memoria",
            "メモリを(?:確保|割り当て)(?:でき|ること)",
        )
    ),
    *(
        _net(_AFTER + words, "host-nofile net-open-files", about="start-up", unless="")
        for words in (
            "打开的文件(?:过|太)多",
            "開啟太多檔案",
            "Zu viele offene Dateien",
            "Trop de fichiers ouverts",
            "Demasiados (?:ficheros|archivos) abiertos",
            "開いているファイルが多すぎ",
        )
    ),
    *(
        _net(_SHELL + words, about="process killed", weight=LIKELY, unless="", says=_SIGKILL)
        for words in ("已杀死", "已殺死", "Getötet", "強制終了")
    ),
    *(
        _net(_SHELL + words, about="application", unless="", says=_SIGSEGV)
        for words in (
            "段错误",
            "記憶體區段錯誤",
            "Speicherzugriffsfehler",
            "Erreur de segmentation",
            "Violación de segmento",
        )
    ),
    *(
        _net(_SHELL + words, "host-shm-too-small", about="start-up", weight=LIKELY, unless="")
        for words in ("总线错误", "匯流排錯誤", "Bus-Zugriffsfehler", "Erreur du bus")
    ),
    # Windows writes the number in every language.
    _win(r"\[WinError 10048\]", _TAKEN, weight=LIKELY),
    _win(r"\[WinError 10049\]", _NOT_OWN),
    _win(r"\[WinError 10013\]", "net-bind-failed"),
    _win(r"\[WinError (?:10051|10065)\]", _UNREACHABLE),
    _win(r"\[WinError 10060\]", _UNREACHABLE),
    _win(r"\[WinError 10061\]", _REFUSED),
    _win(r"\[WinError (?:10054|10053)\]", about="application", weight=CONSEQUENCE, says=_LOST),
    told(r"\[WinError 1455\]", "host-memory-low", about="process killed", weight=LIKELY, source=_SYSTEM),
)
