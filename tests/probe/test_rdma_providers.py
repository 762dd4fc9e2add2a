"""What libibverbs offers: a library compiled here answers as libibverbs does, and this machine's own is asked."""

from __future__ import annotations

import subprocess

import pytest
from made import hcas

from distcheck.probe import infiniband

LIBRARY = """
#include <stdlib.h>
struct ibv_device { const char *name; };
static struct ibv_device made[] = {{"mlx5_0"}, {"bnxt_re1"}};
void **ibv_get_device_list(int *count) {
    void **list = calloc(3, sizeof(void *));
    *count = OFFERED;
    for (int n = 0; n < OFFERED; n++) list[n] = &made[n];
    return list;
}
const char *ibv_get_device_name(void *device) { return ((struct ibv_device *)device)->name; }
void ibv_free_device_list(void **list) { free(list); }
"""


@pytest.mark.process
@pytest.mark.parametrize(("count", "names"), [(2, ("mlx5_0", "bnxt_re1")), (0, ())])
def test_the_adapters_that_libibverbs_offers_are_those_with_a_provider(tmp_path, count, names):
    (tmp_path / "verbs.c").write_text(LIBRARY)
    library = tmp_path / "libibverbs.so.1"
    command = ["cc", "-shared", "-fPIC", f"-DOFFERED={count}", "-o", library, tmp_path / "verbs.c"]
    subprocess.run(command, check=True)
    assert infiniband.offered(str(library)) == names


def test_a_library_that_is_absent_or_is_not_libibverbs_tells_nothing(tmp_path):
    assert infiniband.offered(str(tmp_path / "absent.so")) is None
    assert infiniband.offered("libc.so.6") is None


def test_libibverbs_is_asked_only_where_the_kernel_tells_the_version_of_its_interface(tmp_path, monkeypatch):
    monkeypatch.setattr(infiniband, "_not_loadable", lambda _library: "")
    monkeypatch.setattr(infiniband, "offered", lambda: ("mlx5_0",))
    found = infiniband.collect(hcas.write(tmp_path, [hcas.infiniband()]), {})
    assert (found.offered, found.hcas[0].abi) == (None, None)
    (tmp_path / "sys/class/infiniband_verbs/uverbs0/abi_version").write_text("6\n")
    found = infiniband.collect(tmp_path, {})
    assert (found.offered, found.hcas[0].abi) == (("mlx5_0",), 6)
