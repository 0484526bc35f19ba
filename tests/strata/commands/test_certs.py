"""`strata certs`: authorities and join tokens; `identities` and `revoke` run against real tiers in tests/e2e."""

from __future__ import annotations

from pathlib import Path

from shared.identity.authority import load_authority, make_authority
from shared.identity.join_tokens import load_tokens, read_token
from tests.strata.conftest import Strata


def test_an_authority_is_made_once(strata: Strata, home: Path) -> None:
    made = strata("certs", "init", "authority")
    assert made.code == 0, made.err
    fingerprint = load_authority(home / "authority").fingerprint
    assert fingerprint in made.out
    again = strata("certs", "init", "authority")
    assert (again.code, "holds an authority already" in again.err) == (1, True)
    assert load_authority(home / "authority").fingerprint == fingerprint


def test_a_token_joins_the_authoritys_installation(strata: Strata, home: Path) -> None:
    strata("certs", "init", "authority")
    token = read_token(strata("certs", "token", "edge", "authority").out)
    tokens = load_tokens(home / "authority", load_authority(home / "authority").fingerprint)
    assert token == tokens.of("edge")
    assert strata("certs", "rotate", "authority").code == 0
    assert read_token(strata("certs", "token", "edge", "authority").out).secret != token.secret


def test_a_class_without_tokens_and_a_folder_without_authority_are_named(strata: Strata, home: Path) -> None:
    strata("certs", "init", "authority")
    for node_class in ("cloud", "user"):
        refused = strata("certs", "token", node_class, "authority")
        assert (refused.code, f"no class '{node_class}': edge, device, fleet" in refused.err) == (1, True)
    for command in (("token", "edge"), ("rotate",)):
        refused = strata("certs", *command, "elsewhere")
        assert (refused.code, "no authority in elsewhere" in refused.err) == (1, True)
    assert not (home / "elsewhere").exists()


def test_an_authority_that_a_user_has_is_imported(strata: Strata, home: Path) -> None:
    own = make_authority()
    own.save(home / "own")
    files = ("--key", "own/authority-key.pem", "--certificate", "own/authority.pem")
    assert strata("certs", "import", "authority", *files).code == 0
    assert load_authority(home / "authority").fingerprint == own.fingerprint
    taken = strata("certs", "import", "authority", *files)
    assert (taken.code, "holds an authority already" in taken.err) == (1, True)
    swapped = strata("certs", "import", "other", "--key", "own/authority.pem", "--certificate", "own/authority.pem")
    assert (swapped.code, "the authority cannot be read" in swapped.err) == (1, True)
    missing = strata("certs", "import", "other", "--key", "none.pem", "--certificate", "own/authority.pem")
    assert (missing.code, "none.pem cannot be read" in missing.err) == (1, True)
