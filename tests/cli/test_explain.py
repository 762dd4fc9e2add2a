import pytest

from distcheck.cli.explain import explanation, listing
from distcheck.rules import FAMILIES, all_rules


def test_a_rule_is_explained_by_its_docstring():
    text = explanation("probe-version-differs")
    assert text.startswith(
        "probe-version-differs\nseverity warning, scope job, since 0.1.0\n\n"
        "The nodes run different versions of distcheck.\n"
    )
    assert "Fix: install the same version" in text
    assert "``" not in text
    assert text.endswith("docs/rules/probe.md#probe-version-differs\n")


def test_the_rules_that_silence_a_rule_are_named():
    text = explanation("net-master-unreachable")
    assert "\nseverity error, scope link, since 0.1.0, silent when torchrun-store-port-extra reports the same\n" in text


def test_an_alias_explains_its_rule():
    for rule in all_rules():
        for alias in rule.aliases:
            assert explanation(alias) == explanation(rule.name)
            assert f"(also {', '.join(rule.aliases)})" in explanation(alias)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("probe-version-difers", "similar: probe-version-differs"),
        ("version", "probe-version-differs"),
        ("", "`distcheck explain` lists all rules"),
        ("xyz", "`distcheck explain` lists all rules"),
    ],
)
def test_an_unknown_name_gets_similar_names(name, hint):
    with pytest.raises(LookupError, match="no rule is named") as error:
        explanation(name)
    assert hint in str(error.value)


def test_the_list_has_every_rule_once_in_its_family():
    lines = listing().splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert names == [rule.name for rule in all_rules()]
    families = [line for line in lines if line and not line.startswith(" ")]
    assert families == [family for family in FAMILIES if any(r.family == family for r in all_rules())]
