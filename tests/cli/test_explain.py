import pytest

from distcheck.cli.explain import SHOWN, explanation, listing
from distcheck.facts.errors import UsageError
from distcheck.rules import FAMILIES, all_rules


def test_a_rule_is_explained_by_its_docstring():
    text = explanation("probe-version-differs")
    assert text.startswith(
        "probe-version-differs\nseverity warning, scope job, since 0.1.0\n\n"
        "The nodes run different versions of distcheck.\n"
    )
    assert "Fix: Install the same version" in text
    assert "``" not in text
    assert text.endswith("docs/rules/host.probe.md#probe-version-differs\n")


def test_the_rules_that_silence_a_rule_are_named():
    text = explanation("net-master-unreachable")
    assert "\nseverity error, scope link, since 0.1.0, silent when torchrun-store-port-extra reports the same\n" in text


def test_an_alias_explains_its_rule():
    for rule in all_rules():
        for alias in rule.aliases:
            assert explanation(alias) == explanation(rule.name)
            assert f"(also {', '.join(rule.aliases)})" in explanation(alias)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("RANK", "env-rank-unset"),
        ("port", "env-port-speaks-http"),
        ("port in use", "net-port-in-use"),
        ("MASTER_ADDR", "env-master-addr-format"),
        ("version", "probe-version-differs"),
        ("EADDRINUSE", "torchrun-per-task-under-srun"),
    ],
)
def test_a_word_lists_the_rules_about_it_those_named_after_it_first(words, first):
    title, top, *_ = explanation(words).splitlines()
    assert title.endswith(f" rules about {words}")
    assert top.split()[0] == first


def test_a_word_of_one_rule_explains_that_rule():
    assert explanation("firewall") == explanation("net-firewall-ephemeral")
    assert explanation("Address already in use") == explanation("net-port-in-use")


def test_a_long_list_is_cut():
    lines = explanation("rank").splitlines()
    assert sum(line.startswith("  ") for line in lines) == SHOWN
    assert lines[-2].endswith(" more; list all rules with: distcheck explain")


@pytest.mark.parametrize("word", ["torchrun", "Torchrun", "slurm", "srun", "mpirun", "ssh", "kubernetes", "hand"])
def test_a_launcher_shows_how_to_start_distcheck_with_it(word):
    text = explanation(word)
    assert text.splitlines()[1].startswith("  ")
    assert "distcheck gate" in text.splitlines()[1]


def test_torchrun_needs_no_python():
    assert "--no-python distcheck gate" in explanation("torchrun")
    assert "can't open file" in explanation("torchrun")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("probe-version-difers", "did you mean probe-version-differs?"),
        ("net-prot-in-use", "did you mean net-port-in-use?"),
        ("", "list all rules with: distcheck explain"),
        ("xyz", "list all rules with: distcheck explain"),
    ],
)
def test_an_unknown_name_gets_similar_names(name, hint):
    with pytest.raises(UsageError, match="no rule is") as error:
        explanation(name)
    assert hint in str(error.value)


def test_the_list_has_every_rule_once_in_its_family():
    lines = listing().splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert names == [rule.name for rule in all_rules()]
    families = [line for line in lines if line and not line.startswith(" ")]
    assert families == [family for family in FAMILIES if any(r.family == family for r in all_rules())]
