"""A working directory that was deleted, or that a node lacks, in the words of real processes in such a directory."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules

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
        "salloc: error: getcwd failed: No such file or directory\n",
        "make: getcwd: No such file or directory\n",
        "fatal: Unable to read current working directory: No such file or directory\n",
        "pyenv: cannot change working directory to `/shared/run'\n",
        "[vm:07474] Error: Unable to get the current working directory\n",
        "attempting to get the cwd.  Returned value -11 instead of ORTE_SUCCESS.\n",
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


@pytest.mark.parametrize(
    "line",
    [
        "python: can't open file '/tmp/train.py': [Errno 2] No such file or directory\n",
        "FileNotFoundError: [Errno 2] No such file or directory: 'config.yaml'\n",
        "ModuleNotFoundError: No module named 'my_model'\n",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
        "srun: error: node2: task 1: Exited with exit code 2\n",
    ],
)
@pytest.mark.parametrize("before", [SHELL, CHDIR])
def test_what_then_does_not_find_its_files_is_a_consequence(before, line):
    assert rules(f"{before}srun: error: node1: task 0: Exited with exit code 2\n{line}")[0] == "storage-path-missing"


@pytest.mark.parametrize("before", [SHELL, CHDIR])
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", "CUDA out of memory"),
        ("[rank1]: KeyError: 'lr'\n", "KeyError"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'\n", "/data/train.bin"),
        ("RuntimeError: No CUDA GPUs are available\n", "No CUDA GPUs"),
    ],
)
def test_a_failure_that_has_nothing_to_do_with_the_directory_is_the_answer(before, line, text):
    answer = found(before + line)
    assert text in answer.telling.text
    assert all(cause.rule != "storage-path-missing" or text in cause.text for cause in answer.causes[:1])


@pytest.mark.parametrize(
    "lines",
    [
        f"{TRACEBACK}    path = os.path.abspath(name)\n    sock.connect(path)\n{ERROR}",
        f"{TRACEBACK}    here = os.getcwd()\n    sock.connect(here)\n{ERROR}",
        "FileNotFoundError: [Errno 2] No such file or directory: 'config.yaml'\n",
        "Intel MKL FATAL ERROR: Cannot load libmkl_avx2.so or libmkl_def.so.\n",
        "print(os.getcwd())\n",
    ],
)
def test_lines_that_are_like_these_do_not_blame_the_working_directory(lines):
    assert "storage-path-missing" not in rules(HEALTHY + lines)


@pytest.mark.parametrize("error", ["Stale file handle", "Input/output error"])
def test_a_directory_that_does_not_answer_is_a_file_system_that_hangs(error):
    assert rules(SHELL.replace("No such file or directory", error))[0] == "storage-hangs"
