import compileall
import shutil

import pytest
from benchmarks.programs import ROOT, NotMeasuredError, check_installed, output_of


@pytest.mark.process
def test_only_a_compiled_package_outside_of_the_checkout_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotMeasuredError, match="not the installed package but"):
        check_installed(tmp_path)
    shutil.copytree(ROOT / "distcheck" / "facts", tmp_path / "distcheck" / "facts")
    shutil.copy(ROOT / "distcheck" / "__init__.py", tmp_path / "distcheck")
    shutil.rmtree(tmp_path / "distcheck" / "facts" / "__pycache__", ignore_errors=True)
    with pytest.raises(NotMeasuredError, match="modules are not compiled"):
        check_installed(tmp_path)
    assert compileall.compile_dir(tmp_path, quiet=1)
    check_installed(tmp_path)


@pytest.mark.process
def test_a_program_that_fails_is_an_error_with_its_last_words(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    assert output_of(["sh", "-c", "echo $RANK$PORT"], PORT="3") == "3\n"
    with pytest.raises(NotMeasuredError, match="ended with 3: no such node"):
        output_of(["sh", "-c", "echo no such node >&2; exit 3"])
