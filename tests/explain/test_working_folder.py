"""A working directory that was deleted, or that a node lacks, in the words of real processes in such a directory."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found

SHELL = (
    "shell-init: error retrieving current directory: getcwd: cannot access parent directories: No such file or"
    " directory\n"
)
CHDIR = "slurmstepd-node2: error: couldn't chdir to `/shared/run': No such file or directory: going to /tmp instead\n"
ERROR = "FileNotFoundError: [Errno 2] No such file or directory\n"
TRACEBACK = "Traceback (most recent call last):\n"
AGAIN = 'cd "$PWD" || cd "$HOME"  # in the shell that starts the job'
MKL = "Intel oneMKL FATAL ERROR: Cannot load /env/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so.\n"


@pytest.mark.parametrize(
    "lines",
    [
        SHELL,
        SHELL.replace("shell-init", "chdir"),
        SHELL.replace("shell-init", "job-working-directory"),
        "sh: 0: getcwd() failed: No such file or directory\n",
        "srun: error: getcwd failed: No such file or directory\n",
        "sbatch: error: getcwd failed: No such file or directory\n",
        MKL,
        SHELL + MKL,
        f'{TRACEBACK}  File "<frozen posixpath>", line 404, in abspath\n{ERROR}',
        f"{TRACEBACK}    return cls(os.getcwd())\n               ^^^^^^^^^^^\n{ERROR}",
        "".join(
            f"[rank1]: {line}\n"
            for line in (TRACEBACK.strip(), "    dir=os.getcwd(),", "        ^^^^^^^^^^^", ERROR.strip())
        ),
    ],
)
def test_a_deleted_working_directory_is_named_with_the_command_that_enters_it_again(lines):
    (first, *_) = found(HEALTHY + lines).causes
    assert (first.rule, first.fix.commands) == ("storage-path-missing", (AGAIN,))


@pytest.mark.parametrize("line", [CHDIR, CHDIR.replace("slurmstepd-node2", "slurmstepd")])
def test_a_folder_that_a_node_of_slurm_lacks_is_named_with_its_path(line):
    (first, *_) = found(HEALTHY + line).causes
    assert first.rule == "storage-path-missing"
    assert first.fix.commands[0] == "ls -ld /shared/run  # on every node"


def test_the_node_of_slurms_daemon_is_the_node():
    assert found(CHDIR).telling.node == "node2"


@pytest.mark.parametrize("name", ["/shared/$(reboot)", "/shared/a b", "/shared/;x", "/shared/`x"])
def test_a_folder_that_a_shell_would_not_take_as_it_is_is_left_out(name):
    (first, *_) = found(CHDIR.replace("/shared/run", name)).causes
    assert first.fix.commands[0] == "ls -ld FOLDER  # on every node"
