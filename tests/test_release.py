"""A release: its tag, the workflow, the packages, the container image's file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import hatchling.build
import pytest
import yaml
from markdown_it import MarkdownIt
from packaging.metadata import Metadata

import distcheck

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / ".ci"))
import pyz  # noqa: E402

SCRIPTS = {"check-tag", "run", "build"}
VERSION = distcheck.__version__
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ann"), ("EMAIL", "ann@example.com"))
}


@pytest.fixture
def clone(tmp_path):
    """A repository with this version as it is tagged, and Ann's key, which may sign."""
    for name in ("pyproject.toml", "distcheck/__init__.py", "docs/changelog.md", ".ci/check-tag"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    log = tmp_path / "docs" / "changelog.md"
    log.write_text(re.sub(rf"(?m)^## {re.escape(VERSION)} \(.*\)$", f"## {VERSION} (2026-12-01)", log.read_text()))
    for who in ("ann", "eve"):
        key = tmp_path / who
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key], check=True)
    public = (tmp_path / "ann.pub").read_text()
    (tmp_path / ".ci" / "allowed_signers").write_text(f"ann@example.com {public}")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", f"distcheck {VERSION}")
    return tmp_path


def git(folder, *words):
    settings = ("-c", "gpg.format=ssh", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
    subprocess.run(["git", *settings, *words], cwd=folder, env=os.environ | IDENTITY, check=True)


def tag(folder, name=f"v{VERSION}", *, signer="ann"):
    signing = ("-c", f"user.signingkey={folder / signer}") if signer else ()
    git(folder, *signing, "tag", "--sign" if signer else "--annotate", "-m", name, name)


def checked(folder, name=f"v{VERSION}"):
    ended = subprocess.run([folder / ".ci" / "check-tag", name], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.process
def test_a_tag_that_a_maintainer_signed_is_released(clone):
    tag(clone)
    assert checked(clone)[0] == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "signer", "change", "reason"),
    [
        (f"v{VERSION}", None, None, "no signature by a key"),
        (f"v{VERSION}", "eve", None, "no signature by a key"),
        (VERSION, "ann", None, "begins with v"),
        (f"v{VERSION}.1", "ann", None, "pyproject.toml has another version"),
        (f"v{VERSION}", "ann", ("distcheck/__init__.py", f'"{VERSION}"', '"0.0.0"'), "__init__.py has another version"),
        (f"v{VERSION}", "ann", ("docs/changelog.md", "(2026-12-01)", "(unreleased)"), "docs/changelog.md has no"),
    ],
)
def test_another_tag_is_not_released(clone, name, signer, change, reason):
    if change:
        path = clone / change[0]
        assert change[1] in path.read_text()
        path.write_text(path.read_text().replace(*change[1:]))
    tag(clone, name, signer=signer)
    code, error = checked(clone, name)
    assert (code, reason in error) == (1, True), error


@pytest.mark.process
def test_a_tag_of_another_commit_is_not_released(clone):
    tag(clone)
    git(clone, "commit", "-q", "--allow-empty", "-m", "later")
    code, error = checked(clone)
    assert (code, "another commit" in error) == (1, True), error


def test_the_workflow_publishes_only_what_the_scripts_tested_and_built():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    build, publish, release = (workflow["jobs"][name] for name in ("build", "publish", "release"))
    run = [step["run"] for step in build["steps"] if "run" in step]
    assert [name for step in run for name in re.findall(r"\.ci/([\w-]+)", step)] == ["check-tag", "run", "build"]
    kept = {each["with"]["name"]: each["with"]["path"].split() for each in build["steps"][-2:]}
    assert kept == {"pypi": ["dist/*.whl", "dist/*.tar.gz"], "release": ["dist"]}
    download, last = publish["steps"]
    assert download["with"] == {"name": "pypi", "path": "dist"}
    assert last["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert (publish["needs"], publish["environment"]) == ("build", "pypi")
    assert publish["permissions"] == {"id-token": "write"}
    assert "permissions" not in build
    download, last = release["steps"]
    assert download["with"] == {"name": "release", "path": "dist"}
    assert last["run"].startswith('gh release create "$GITHUB_REF_NAME" dist/*')
    assert (release["needs"], release["permissions"]) == ("publish", {"contents": "write"})


def test_the_workflow_has_each_python_of_the_archive_and_runs_the_tests_with_the_last():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (setup,) = [step for step in workflow["jobs"]["build"]["steps"] if "setup-python" in step.get("uses", "")]
    versions = setup["with"]["python-version"].split()
    assert sorted(versions) == sorted(pyz.PYTHONS)
    assert versions[-1] == "3.12"


def test_the_scripts_of_the_workflow_can_be_run_and_are_on_the_page():
    page = (ROOT / "docs" / "releasing.md").read_text()
    for name in SCRIPTS:
        assert os.access(ROOT / ".ci" / name, os.X_OK)
        assert f"`.ci/{name}`" in page


def test_the_manifests_name_the_image_of_this_version():
    texts = [path.read_text() for path in (ROOT / "docs").rglob("*") if path.suffix in {".yaml", ".md"}]
    tags = [tag for text in texts for tag in re.findall(r"\b(?:newTag|tag): ([\d.]*\d)", text)]
    assert len(tags) > 3
    assert set(tags) == {VERSION}


def test_pages_that_install_by_name_say_what_to_do_until_the_name_is_on_an_index():
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    named = {name for name, text in pages.items() if re.search(r"(?:pip|tool) install '?distcheck", text)}
    assert named >= {"install.md", "adoption.md", "hang.md"}
    for name in named - {"install.md"}:
        assert "(install.md#until-distcheck-is-on-pypi)" in pages[name], name


@pytest.mark.process
def test_the_linter_of_container_files_has_nothing_to_say():
    linted = subprocess.run(
        [Path(sys.prefix, "bin", "hadolint"), ROOT / "docs/Containerfile"], capture_output=True, text=True, check=False
    )
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")


def test_the_wheel_of_what_the_image_copies_has_everything(tmp_path, monkeypatch):
    text = (ROOT / "docs/Containerfile").read_text()
    sources = [name for line in re.findall(r"(?m)^COPY (?!--from)(.*)", text) for name in line.split()[:-1]]
    allowed = re.findall(r"(?m)^!(.*)", (ROOT / ".dockerignore").read_text())
    assert set(sources) == set(allowed)
    for name in sources:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(source, tmp_path / name)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.chdir(tmp_path)
    wheel = zipfile.ZipFile(hatchling.build.build_wheel(str(tmp_path)))
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = [path for path in (ROOT / "distcheck").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert inside == {str(path.relative_to(ROOT)) for path in files}
    (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
    metadata = Metadata.from_email(wheel.read(name), validate=True)
    assert (metadata.name, str(metadata.version)) == ("distcheck", VERSION)
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "README.md").read_text()
    assert "torch" not in {each.name for each in metadata.requires_dist if each.marker is None}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_every_link_on_the_page_of_pypi_leads_to_a_file_of_the_released_version(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("GITHUB_REPOSITORY", "site/distcheck")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.example")
    monkeypatch.chdir(ROOT)
    if kind == "wheel":
        wheel = zipfile.ZipFile(tmp_path / hatchling.build.build_wheel(str(tmp_path)))
        (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
        text = wheel.read(name)
    else:
        with tarfile.open(tmp_path / hatchling.build.build_sdist(str(tmp_path))) as archive:
            text = archive.extractfile(f"distcheck-{VERSION}/PKG-INFO").read()
    page = MarkdownIt().parse(Metadata.from_email(text, validate=True).description)
    links = [str(token.attrs["href"]) for part in page for token in part.children or () if token.type == "link_open"]
    base = f"https://github.example/site/distcheck/blob/v{VERSION}/"
    ours = [link.removeprefix(base).partition("#")[0] for link in links if link.startswith(base)]
    assert "docs/install.md" in ours
    assert not [path for path in ours if not (ROOT / path).is_file()]
    assert not [link for link in links if not re.match(r"https?://|#", link)]
    assert len(MarkdownIt().parse((ROOT / "README.md").read_text())) == len(page)


@pytest.mark.long
def test_the_source_distribution_has_what_its_tests_need_and_no_caches(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    name = hatchling.build.build_sdist(str(tmp_path))
    with tarfile.open(tmp_path / name) as archive:
        inside = {path.partition("/")[2] for path in archive.getnames()}
    assert {"distcheck/__init__.py", "docs/changelog.md", "tests/conftest.py", "README.md", "LICENSE"} <= inside
    assert {
        "docs/Containerfile",
        ".dockerignore",
        ".github/workflows/release.yml",
        *(f".ci/{name}" for name in ("readme.py", "packages", "pyz.py", "pyz_start.py")),
        *(f".ci/{name}" for name in SCRIPTS),
    } <= inside
    assert not [path for path in inside if re.search(r"__pycache__|\.venv|_cache|\.pyc$", path)]
