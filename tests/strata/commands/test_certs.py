"""`strata certs`: authorities and join tokens; `identities` and `revoke` run against real tiers in tests/e2e."""

from __future__ import annotations

from pathlib import Path

from shared.identity.authority import load_authority, make_authority
from shared.identity.join_tokens import load_tokens, read_token
from tests.strata.conftest import CommandResult, Strata


def test_an_authority_is_made_once_and_its_token_joins_its_installation(strata: Strata, home: Path) -> None:
    made = strata("certs", "init", "authority")
    assert made.code == 0, made.err
    fingerprint = load_authority(home / "authority").fingerprint
    assert fingerprint in made.out
    again = strata("certs", "init", "authority")
    assert (again.code, "holds an authority already" in again.err) == (1, True)
    assert load_authority(home / "authority").fingerprint == fingerprint
    token = read_token(strata("certs", "token", "edge", "authority").out)
    assert token == load_tokens(home / "authority", fingerprint).of("edge")
    assert strata("certs", "rotate", "authority").code == 0
    assert read_token(strata("certs", "token", "edge", "authority").out).secret != token.secret
    for words, said in (
        (("token", "cloud", "authority"), "no class 'cloud': edge, device, fleet"),
        (("token", "user", "authority"), "no class 'user': edge, device, fleet"),
        (("token", "edge", "elsewhere"), "no authority in elsewhere"),
        (("rotate", "elsewhere"), "no authority in elsewhere"),
    ):
        refused = strata("certs", *words)
        assert (refused.code, said in refused.err) == (1, True), words
    assert not (home / "elsewhere").exists()


def test_an_authority_that_a_user_has_is_imported(strata: Strata, home: Path) -> None:
    def imported(into: str, key: str, certificate: str = "own/authority.pem") -> CommandResult:
        return strata("certs", "import", into, "--key", key, "--certificate", certificate)

    own = make_authority()
    own.save(home / "own")
    assert imported("authority", "own/authority-key.pem").code == 0
    assert load_authority(home / "authority").fingerprint == own.fingerprint
    for into, key, said in (
        ("authority", "own/authority-key.pem", "holds an authority already"),
        ("other", "own/authority.pem", "the authority cannot be read"),
        ("other", "none.pem", "none.pem cannot be read"),
    ):
        refused = imported(into, key)
        assert (refused.code, said in refused.err) == (1, True), said
