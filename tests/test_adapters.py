"""The adapters of the docs between the real `distcheck node` and stand-ins that speak as each peer does."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from made.nvml_jobs import PROFILES
from real.waiting import until

DOCS = Path(__file__).parent.parent / "docs"
ADAPTERS = DOCS / "adapters"
H100 = PROFILES["dgx_h100"]
STATES = {"healthy": H100, "bad": H100 + "3.ecc.1.0 2\n", "unknown": H100 + "3.link.state.5 0\n", "absent": None}
"""What NVML says on a node; `absent`: distcheck is not installed."""

pytestmark = pytest.mark.process


@pytest.fixture
def on(fake_nvml):
    """Return the environment of a process on a node in one of the states."""

    def on(state):
        if STATES[state] is None:
            return {"PATH": "/usr/bin:/bin"}
        return fake_nvml.variables(STATES[state]) | {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"}

    return on


def ran(command, env, **more):
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120, **more)
    return ended.returncode, ended.stdout, ended.stderr


# -- LBNL NHC: its driver sets a PATH, loads *.nhc and evaluates the line of nhc.conf; a check that fails calls die
# (the program nhc of https://github.com/mej/nhc, 1.4.3)

NHC = """\
PATH=/sbin:/usr/sbin:/bin:/usr/bin
die() { local RET="$1"; shift; echo "ERROR:  nhc:  Health check failed:  $*"; exit "$RET"; }
log() { echo "$@"; }
syslog() { :; }
. "$1"
eval "$2"
"""


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("healthy", 0, ""),
        ("bad", 1, "ERROR:  nhc:  Health check failed:  check_distcheck:  distcheck: FAIL: "),
        ("unknown", 0, ""),
        ("absent", 0, "check_distcheck:  no result (exit code 127)"),
    ],
)
def test_nhc_fails_on_a_bad_node_only(on, tmp_path, state, code, said):
    here = "/nowhere" if state == "absent" else f"{sys.prefix}/bin"
    (tmp_path / "distcheck.nhc").write_text(
        (ADAPTERS / "distcheck.nhc").read_text().replace("/opt/distcheck/bin", here)
    )
    (line,) = re.findall(r"\* \|\| (check_distcheck.*?)'", (DOCS / "adapters.md").read_text())
    ended, output, errors = ran(["bash", "-c", NHC, "nhc", tmp_path / "distcheck.nhc", line], on(state))
    assert (ended, errors, output.count("\n")) == (code, "", 1 if said else 0)
    assert output.startswith(said)


# -- soperator: a check's command runs in the folder of all scripts; what it writes to descriptor 3 is the reason


@pytest.fixture
def soperator(tmp_path, on):
    """Run a check as soperator's check_runner.py does; return its exit code and the reason for Slurm."""
    extra = yaml.safe_load((ADAPTERS / "soperator-values.yaml").read_text())["slurmScripts"]["extra"]
    checks = {}
    for name, entry in extra.items():
        assert "{{" not in entry["content"] + entry["config"], "Helm would read it as a template"
        content = entry["content"].replace("/opt/distcheck/bin/distcheck", f"{sys.prefix}/bin/distcheck")
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
        check = json.loads(entry["config"])
        checks[check["name"]] = check

    def soperator(name, state, **env):
        command = f'{checks[name]["command"]} 3>&1 1>"{tmp_path}/log" 2>&1'
        code, details, _ = ran(["bash", "-l", "-c", command], on(state) | env, cwd=tmp_path)
        base = checks[name]["reason_base"].replace("$name", name)
        return code, f"{base}: {details.strip()}" if code else ""

    return soperator


@pytest.mark.parametrize("state", ["healthy", "unknown"])
def test_soperator_leaves_a_healthy_and_an_unknown_node_alone(soperator, state):
    assert soperator("distcheck", state) == (0, "")
    assert soperator("distcheck_full", state) == (0, "")


FULL = """\
[threshold]
tmp-free-MiB = 1000000000
[rule.host-disk-full]
severity = "error"
"""
"""A policy for which every disk is full."""


def test_soperator_tells_a_bad_gpu_from_a_full_disk(soperator, tmp_path):
    code, reason = soperator("distcheck", "bad")
    assert code == 1
    assert reason.startswith("[node_problem] distcheck: distcheck: FAIL: ")
    assert "GPU 3" in reason
    assert soperator("distcheck_full", "bad") == (0, "")
    (tmp_path / "full.toml").write_text(FULL)
    full = {"DISTCHECK_POLICY": str(tmp_path / "full.toml")}
    assert soperator("distcheck", "healthy", **full) == (0, "")
    code, reason = soperator("distcheck_full", "healthy", **full)
    assert code == 1
    assert reason.startswith("[user_problem] distcheck_full: distcheck: UNKNOWN: ")
    assert "[host-disk-full" in reason


# -- SageMaker HyperPod: a lifecycle script with `set -ex`; an exit code other than 0 fails the instance


@pytest.mark.parametrize(("state", "code"), [("healthy", 0), ("bad", 1), ("unknown", 0), ("absent", 0)])
def test_a_lifecycle_script_fails_on_a_bad_instance_only(on, state, code):
    (lines,) = re.findall(r"(?s)```sh\n(code=0.*?)```", (DOCS / "adapters.md").read_text())
    lines = lines.replace("/opt/distcheck/bin/distcheck", "distcheck")
    assert ran(["bash", "-exc", lines], on(state))[0] == code


# -- NVRx and NVSentinel: gRPC over a Unix socket, with the messages that tests/recorded/peers has


@pytest.fixture(scope="module")
def grpc():
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools")
    return pytest.importorskip("grpc")


@pytest.fixture
def messages(grpc, monkeypatch):
    """Return the messages and the service of a peer's recorded protobuf."""
    import grpc_tools

    for folder in (Path(__file__).parent / "recorded" / "peers", Path(grpc_tools.__file__).parent / "_proto"):
        monkeypatch.syspath_prepend(folder)
    return grpc.protos_and_services


@pytest.fixture
def nvrx(grpc, messages, on, tmp_path):
    """Ask the service about a node as NVRx's launcher does; return its answer."""

    def nvrx(state):
        path = tmp_path / "nvhcd.sock"
        with socket.socket(socket.AF_UNIX) as left:  # by a service that was killed
            left.bind(str(path))
        command = [sys.executable, ADAPTERS / "grpc_peers.py", "nvrx", path]
        with subprocess.Popen(command, env=on(state), stdout=subprocess.PIPE, text=True) as service:
            try:
                until(lambda: service.poll() is not None or (path.exists() and path.stat().st_mode & 0o777 == 0o666))
                with grpc.insecure_channel(f"unix://{path}") as channel:
                    stub = services.HealthCheckServiceStub(channel)
                    return stub.RunHealthCheck(protos.HealthCheckRequest(args=["--no-slurm"]), timeout=60)
            finally:
                service.terminate()

    protos, services = messages("nvrx.proto")
    return nvrx


@pytest.mark.parametrize(
    ("state", "code", "failed"),
    [("healthy", 0, []), ("bad", 40, ["gpu-ecc-uncorrected"]), ("unknown", 20, []), ("absent", 70, [])],
)
def test_nvrx_leaves_out_a_bad_node_only(nvrx, state, code, failed):
    answer = nvrx(state)
    assert (answer.success, answer.exit_code) == (not failed, code)
    assert json.loads(answer.output) == {"fail_count": len(failed), "failed_checks": failed}
    assert ("GPU 3" in answer.error) == bool(failed)


@pytest.fixture
def nvsentinel(grpc, messages, on, tmp_path):
    """Run the preflight check beside a platform connector; return its exit code and the events."""
    _, services = messages("nvsentinel.proto")
    from google.protobuf.empty_pb2 import Empty

    class Connector(services.PlatformConnectorServicer):
        events = ()

        def HealthEventOccurredV1(self, request, _context):  # noqa: N802 the service's own name
            assert request.version == 1
            self.events += tuple(request.events)
            return Empty()

    def nvsentinel(state, strategy="EXECUTE_REMEDIATION"):
        connector, server = Connector(), grpc.server(ThreadPoolExecutor(1))
        services.add_PlatformConnectorServicer_to_server(connector, server)
        address = f"unix://{tmp_path}/connector.sock"
        server.add_insecure_port(address)
        server.start()
        try:
            variables = {"NODE_NAME": "n1", "PLATFORM_CONNECTOR_SOCKET": address, "PROCESSING_STRATEGY": strategy}
            command = [sys.executable, ADAPTERS / "grpc_peers.py", "nvsentinel"]
            code, _, said = ran(command, on(state) | variables)
            assert said == ""
            return code, connector.events
        finally:
            server.stop(None)

    return nvsentinel


@pytest.mark.parametrize(("state", "code"), [("healthy", 0), ("bad", 1)])
def test_nvsentinel_gets_an_event_of_a_healthy_and_of_a_bad_node(nvsentinel, state, code):
    ended, (event,) = nvsentinel(state)
    bad = state == "bad"
    assert ended == code
    assert (event.isFatal, event.isHealthy) == (bad, not bad)
    assert (event.agent, event.checkName, event.nodeName, event.version) == ("distcheck", "DistcheckNode", "n1", 1)
    assert list(event.errorCode) == ["gpu-ecc-uncorrected"] * bad
    assert [(each.entityType, each.entityValue[:4]) for each in event.entitiesImpacted] == [("GPU_UUID", "GPU-")] * bad
    assert (event.recommendedAction, event.processingStrategy) == (5 * bad, 1)
    assert abs(event.generatedTimestamp.seconds - time.time()) < 600
    assert event.message.startswith("FAIL: " if bad else "PASS: ")


@pytest.mark.parametrize(("state", "code"), [("unknown", 1), ("absent", 2)])
def test_nvsentinel_gets_no_event_of_a_node_that_is_unknown(nvsentinel, state, code):
    assert nvsentinel(state) == (code, ())


def test_a_check_that_only_stores_stops_no_pod(nvsentinel):
    code, (event,) = nvsentinel("bad", "STORE_ONLY")
    assert (code, event.isFatal, event.processingStrategy) == (0, True, 2)
