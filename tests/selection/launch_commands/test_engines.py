"""What the words of vllm and sglang say about their ranks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from selection.launch_commands.reading import reading, why

from distcheck.facts.engine import Engine, FixedPort
from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands.stated import Untold

FILES = {
    "two.yaml": "model: m\ntensor_parallel_size: 8  # a node\npipeline-parallel-size: '2'\nnnodes: 2\n",
    "nested.yml": "---\nlora-modules:\n-\ncompilation-config:\n  tensor-parallel-size: 2\ntp-size: 4\nuse-ray: false\n",
    "ray.yaml": "use-ray: true\n",
    "merged.yaml": "<<: *all\ntensor-parallel-size: 2\n",
}


def of(line: str, **environ: str) -> Stated | Untold | None:
    """What its ranks are; what the engine needs beside them is tested below."""
    found = reading(line, environ, FILES)
    return replace(found, engine=None) if isinstance(found, Stated) else found


def vllm(nproc: int, mesh: str = "", *place: int | str) -> Stated:
    return Stated("vllm", str(nproc), *place, mesh=mesh)  # type: ignore[arg-type]


def replicas(option: str, found: Stated) -> Stated:
    return replace(found, by=f"vllm {option}")


def sglang(nproc: int, mesh: str = "", *place: int | str) -> Stated:
    return Stated("sglang", str(nproc), *place, mesh=mesh)  # type: ignore[arg-type]


NODE_1_OF_2 = (2, 0, 1, "10.99.48.128")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve m", vllm(1)),
        ("vllm serve facebook/opt-13b --tensor-parallel-size 4", vllm(4, "tp=4")),
        ("vllm serve m --tensor_parallel_size=4 -pp 2", vllm(8, "pp=2,tp=4")),
        ("vllm serve m --tensor-par 4 --max-model-len 2 -tp=2 -O3", vllm(2, "tp=2")),
        ("vllm serve m --data-parallel-size=4 --tensor-parallel-size=2 -pcp 2", vllm(16, "dp=4,cp=2,tp=2")),
        (
            "vllm serve m -tp 8 -pp 2 --nnodes 2 --node-rank 1 --master-addr 10.99.48.128 --headless",
            vllm(8, "pp=2,tp=8", *NODE_1_OF_2, 29501),
        ),
        ("vllm serve m -tp 8 -n2 -r1 --master-addr 10.99.48.128", vllm(4, "tp=8", *NODE_1_OF_2, 29501)),
        ("vllm serve m -dp 4 -dpl 2 -dpa h -dpp 13345", replicas("-dpl", vllm(2, "dp=4", 2, 0, 0, "h", 13345))),
        (
            "vllm serve m --headless -dp 4 -tp 2 -dpl 2 --data-parallel-start-rank 2 --data-parallel-address h",
            replicas("-dpl", vllm(4, "dp=4,tp=2", 2, 0, 1, "h", 29550)),
        ),
        ("vllm serve m --headless -dp 4 -dpl 4 -dpa h", vllm(4, "dp=4")),
        (
            "vllm serve m -dp 16 --data-parallel-rank 3 -dpa h",
            replicas("-dpn", vllm(1, "dp=16", 16, 0, 3, "h", 29550)),
        ),
        ("vllm serve m -dp 2 --data-parallel-start-rank 1", vllm(2, "dp=2")),
        ("vllm serve --config two.yaml -r 1 --master-addr 10.99.48.128", vllm(8, "pp=2,tp=8", *NODE_1_OF_2, 29501)),
        ("vllm serve m -tp 4 -n 1 --config two.yaml", vllm(8, "pp=2,tp=4")),
        ("vllm serve m --config=two.yaml", vllm(1)),
        ("python -m vllm.entrypoints.openai.api_server --model m -tp 2", vllm(2, "tp=2")),
        ("vllm bench throughput -tp 4", None),
        ("vllm serve m -tp 4 --distributed-executor-backend external_launcher", None),
    ],
)
def test_vllm_is_read_as_it_reads_itself(line: str, expected: Stated | None) -> None:
    assert of(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python3 -m sglang.launch_server --model-path m --tp 8", sglang(8, "tp=8")),
        ("python3 -m sglang.launch_server --model-path m --dp 2 --tp 2", sglang(4, "dp=2,tp=2")),
        ("python3 -m sglang.launch_server --tp 8 --dp 8 --enable-dp-attention", sglang(8, "tp=8")),
        ("python3 -m sglang.launch_server --tp 8 --attn-dp-size 8 --ep 8", sglang(8, "tp=8")),
        (
            "python3 -m sglang.launch_server --tp 8 --pp-size 2 --nccl-init-addr sgl-0:50000 --nnodes 2",
            sglang(8, "pp=2,tp=8", 2, 0, 0, "sgl-0", 50000),
        ),
        (
            "python3 -m sglang.launch_server --tp 16 --dist-init-addr [fd00::1]:5000 --nnodes 2 --node-rank 1",
            sglang(8, "tp=16", 2, 0, 1, "fd00::1", 5000),
        ),
        ("python3 -m sglang.launch_server --config nested.yml", sglang(4, "tp=4")),
        ("sglang serve m --tp-size 2", sglang(2, "tp=2")),
        ("sglang generate --tp 2", None),
    ],
)
def test_sglang_is_read_as_it_reads_itself(line: str, expected: Stated | None) -> None:
    assert of(line) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("vllm serve m -tp 8 --distributed-executor-backend ray", "Ray places its ranks"),
        ("vllm serve m -dp 8 --data-parallel-backend=ray", "Ray places its ranks"),
        ("vllm serve m -tp two", "refused: --tensor-parallel-size is 'two', expected a number from 1"),
        ("vllm serve m -tp", "refused: --tensor-parallel-size is '', expected a number from 1"),
        ("vllm serve m -dp 4 -n 2 --data-parallel-rank 1", "several such commands share a node"),
        ("vllm serve m -dp 2 --data-parallel-rank 1", "its replicas are commands of their own on this node"),
        ("vllm serve m -dp 4 -dpl 0", "it starts no ranks on this node"),
        ("vllm serve m -dp 4 -dpl 3", "its nodes have different numbers of ranks"),
        ("vllm serve m -dp 4 -dpl 2 -dpr 4", "its replicas 4 to 5 are not all of its 4"),
        ("vllm serve m --config no.yaml", "refused: file no.yaml cannot be read: No such file or directory"),
        ("vllm serve m --config merged.yaml", "its file merged.yaml is not one key a line: '<<: *all'"),
        ("sglang serve m --tp 8 --nnodes 2", "--dist-init-addr has no address and port"),
        (
            "sglang serve m --tp 8 --dp 2 --nnodes 2",
            "refused: --dp-size 2 is refused with --nnodes 2, except for attention only",
        ),
        ("sglang serve m --config ray.yaml", "Ray places its ranks"),
        ("sglang serve flux --num-gpus 4", "its model is no language model"),
    ],
)
def test_what_cannot_be_told_has_a_reason(line: str, reason: str) -> None:
    assert why(line, {}, FILES) == reason


def test_vllms_variables_make_it_one_replica() -> None:
    found = of("vllm serve m -tp 2", VLLM_DP_SIZE="2", VLLM_DP_RANK="1")
    assert isinstance(found, Untold)
    assert found.remedy == "--rank, --world-size and --nproc"
    assert of("vllm serve m -dp 2", VLLM_DP_SIZE="4") == vllm(2, "dp=2")


@pytest.mark.parametrize(
    ("line", "refused", "remedy"),
    [
        ("vllm serve m -tp 8 -n 3", "--nnodes 3, by which its 8 ranks cannot be divided", "--nnodes 2"),
        (
            "sglang serve m --tp 4 --nnodes 3 --dist-init-addr h:20000",
            "--nnodes 3, by which its 4 ranks cannot be divided",
            "--nnodes 2",
        ),
        (
            "vllm serve m -tp 8 -n 2 --master-addr h --master-port 70000",
            "--master-port 70000, expected a port from 1 to 65535",
            "--master-port 29500",
        ),
        (
            "sglang serve m --tp 8 --nnodes 2 --dist-init-addr h:70000",
            "--dist-init-addr h:70000, expected a port from 1 to 65535",
            "--dist-init-addr h:29500",
        ),
    ],
)
def test_what_an_engine_will_refuse_is_stated_with_what_it_would_take(line: str, refused: str, remedy: str) -> None:
    found = of(line)
    assert isinstance(found, Stated)
    assert (found.refused, found.remedy, found.nodes) == (refused, remedy, 1)


def needs(line: str, **environ: str) -> Engine:
    found = reading(line, environ, FILES)
    assert isinstance(found, Stated)
    assert found.engine is not None
    return found.engine


NIXL = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'"""
TWO_VLLM = "vllm serve m -tp 16 --nnodes 2 --master-addr h"
TWO_SGLANG = "python3 -m sglang.launch_server --model-path m --tp 16 --nnodes 2 --dist-init-addr h:20000"
ATTENTION = "--dp 16 --enable-dp-attention"


@pytest.mark.parametrize(
    ("line", "ports"),
    [
        ("vllm serve m", "8000 --port"),
        ("vllm serve m --port 0 --host 10.0.0.1", "0 --port at 10.0.0.1"),
        (TWO_VLLM, "8000 --port, 29501 --master-port meets"),
        (f"{TWO_VLLM} --node-rank 1 --headless", ""),
        (
            "vllm serve m -tp 8 -dp 2 --nnodes 2 --master-addr h --master-port 29000",
            "8000 --port, 29000 --master-port meets, 29550 --data-parallel-rpc-port",
        ),
        ("vllm serve m -dp 4 -dpl 2 -dpa h", "8000 --port, 29550 --data-parallel-rpc-port meets"),
        (
            f"vllm serve m --headless -dp 4 -dpl 2 --data-parallel-start-rank 2 -dpa h {NIXL}",
            "5602 VLLM_NIXL_SIDE_CHANNEL_PORT +2 at 127.0.0.1, 5603 VLLM_NIXL_SIDE_CHANNEL_PORT +3 at 127.0.0.1",
        ),
        (f"{TWO_VLLM} --node-rank 1 --headless {NIXL}", ""),
        (TWO_SGLANG, "30000 --port at 127.0.0.1, 20000 --dist-init-addr meets"),
        (
            f"{TWO_SGLANG} {ATTENTION} --node-rank 1 --host 0.0.0.0",
            (
                "30000 --port, 20001 --dist-init-addr +1, 20002 --dist-init-addr +2, "
                "20003 --dist-init-addr +3, 20004 --dist-init-addr +4, 20005 --dist-init-addr +5, "
                "20006 --dist-init-addr +6, 20000 --dist-init-addr"
            ),
        ),
        (
            f"{TWO_SGLANG.replace('20000', '65530')} {ATTENTION} --disaggregation-mode prefill",
            (
                "30000 --port at 127.0.0.1, 65530 --dist-init-addr meets, 65523 --dist-init-addr -7, "
                "65524 --dist-init-addr -6, 65525 --dist-init-addr -5, 65526 --dist-init-addr -4, "
                "65527 --dist-init-addr -3, 65528 --dist-init-addr -2, 65543 --dist-init-addr +13, "
                "8998 --disaggregation-bootstrap-port at 127.0.0.1"
            ),
        ),
        (
            "sglang serve m --tp 2 --attn-dp-size 2 --port 30100 --moe-a2a-backend nixl",
            (
                "30100 --port at 127.0.0.1, 30334 --port +234, 30335 --port +235, 30336 --port +236, "
                "30337 --port +237, 30338 --port +238, 30333 --port +233, 30113 --port +13, 29600 SGLANG_TCP_STORE_PORT"
            ),
        ),
    ],
)
def test_an_engines_ports_are_those_of_its_node(line: str, ports: str) -> None:
    def said(port: FixedPort) -> str:
        distance = f" {port.distance:+}" if port.distance else ""
        return f"{port.number} {port.option}{distance}{' meets' * port.meets}{f' at {port.host}' * bool(port.host)}"

    assert ", ".join(map(said, needs(line).ports)) == ports


@pytest.mark.parametrize(
    ("line", "environ", "announces", "address", "by"),
    [
        (TWO_VLLM, {"VLLM_HOST_IP": "10.0.0.1", "HOST_IP": "10.0.0.9"}, True, "10.0.0.1", "VLLM_HOST_IP"),
        (TWO_VLLM, {"HOST_IP": "10.0.0.9"}, True, "", ""),
        ("vllm serve m -tp 8 -dp 2 --nnodes 2 --master-addr h", {"VLLM_HOST_IP": "10.0.0.1"}, False, "", ""),
        ("vllm serve m -tp 8", {"VLLM_HOST_IP": "10.0.0.1"}, False, "", ""),
        (TWO_SGLANG, {"HOST_IP": "10.0.0.9"}, True, "10.0.0.9", "HOST_IP"),
        (TWO_SGLANG, {"SGLANG_LOCAL_IP_NIC": "eth1"}, True, "", "SGLANG_LOCAL_IP_NIC=eth1"),
        (f"{TWO_SGLANG} --node-rank 1", {"SGLANG_HOST_IP": "10.0.0.1"}, False, "", ""),
        (
            "sglang serve m --disaggregation-mode decode",
            {"SGLANG_HOST_IP": "10.0.0.1"},
            True,
            "10.0.0.1",
            "SGLANG_HOST_IP",
        ),
    ],
)
def test_an_engine_gives_an_address_only_where_others_connect_to_it(
    line: str, environ: dict[str, str], *, announces: bool, address: str, by: str
) -> None:
    found = needs(line, **environ)
    assert (found.announces, found.address, found.address_by) == (announces, address, by)


@pytest.mark.parametrize(
    ("line", "model", "program"),
    [
        ("vllm serve /models/m -tp 2", "/models/m", "vllm"),
        ("/opt/venv/bin/vllm serve --model ./m", "./m", "/opt/venv/bin/vllm"),
        ("vllm serve org/name", "", "vllm"),
        ("nohup python3 -m sglang.launch_server --model-path ../m", "../m", "python3"),
        ("vllm serve s3://bucket/m", "", "vllm"),
    ],
)
def test_a_model_is_a_path_only_if_no_name_can_look_like_it(line: str, model: str, program: str) -> None:
    found = needs(line, VLLM_PORT="tcp://10.0.0.1:80")
    assert (found.model, found.program) == (model, program)
    assert found.port_variable == ("tcp://10.0.0.1:80" if found.name == "vLLM" else None)


def test_the_side_channel_is_localhost_unless_it_is_set() -> None:
    assert needs("vllm serve m").side_channel is None
    assert needs(f"vllm serve m {NIXL}").side_channel == "localhost"
    assert needs(f"vllm serve m {NIXL}", VLLM_NIXL_SIDE_CHANNEL_HOST="10.0.0.1").side_channel == "10.0.0.1"
