"""An address of Redis is refused before anything of it is logged or resolved, with what to do."""

from __future__ import annotations

import pytest

from cloud_server.settings import CloudSettings
from edge_server.settings import EdgeSettings
from shared.core.errors import BadInput
from shared.storage.key_value import RedisStore, has_user
from shared.storage.key_value.address import checked_address, place_of

SECRET = "s3cret"  # noqa: S105 - none
RIGHT = [
    "redis://127.0.0.1:6379/0", "redis://redis", "rediss://redis:6380/1", "redis://[::1]:6379/0", "redis://redis/",
    "unix:///run/redis.sock?db=0", "redis://:p%40ss%2Fw%3Ard%231@127.0.0.1:6379/0", "redis://user:pw@redis:6379/15",
    "rediss://redis:6379/0?ssl_ca_certs=/ca.pem", "redis://redis?db=3", "redis://:p@ss@redis/0",
]  # fmt: skip
WHY = {
    "percent-encoded": [
        "redis://:s3cret@x/w:rd#1@127.0.0.1:6379/0", "redis://:s3cret#1@127.0.0.1:6379/0",
        "redis://:s3cret?1@127.0.0.1:6379/0", "redis://:s3cret/1@127.0.0.1:6379/0",
        "redis://:s3cret[1@127.0.0.1:6379/0", "redis://user:s3cret/x@redis:6379",
    ],
    "a line break": ["redis://:s3cret@redis:6379/0\n"],
    "a blank": ["redis://:s3 s3cret@redis:6379/0"],
    "no number": [
        "redis://:s3cret@redis:port/0", "redis://:s3cret@redis:70000/0", "redis://:s3cret@redis:6379,other:6379/0",
    ],
    "names no host": ["redis://:s3cret@:6379/0"],
    "names no host or no port": ["redis://:s3cret@redis:0/0"],
    "a database that is no number": [
        "redis://:s3cret@redis/zero", "redis://:s3cret@redis/0/1", "redis://:s3cret@redis/1?db=2",
    ],
    "unknown option": ["redis://:s3cret@redis/0?decode_responses=yes", "redis://:s3cret@redis/0?ssl_s3cret=yes"],
    "has no scheme": ["localhost:6379", "127.0.0.1:6379", ":s3cret@redis:6379", "redis:s3cret@redis"],
    "begins with http://": ["http://:s3cret@redis:6379"],
    "begins with tcp://": ["tcp://10.0.0.1:6379"],
    "neither Sentinel nor cluster mode is supported": [
        "redis-sentinel://:s3cret@redis:6379", "redis+cluster://:s3cret@redis:6379",
    ],
}  # fmt: skip
WRONG = {url: why for why, urls in WHY.items() for url in urls}


def test_right_addresses_stay_as_they_are() -> None:
    assert [checked_address(url) for url in RIGHT] == RIGHT


@pytest.mark.parametrize(("url", "why"), WRONG.items(), ids=range(len(WRONG)))
def test_each_door_refuses_a_wrong_address_with_the_remedy_and_without_its_password(
    url: str, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLOUD_REDIS_URL", url)
    monkeypatch.setenv("EDGE_REDIS_URL", url)
    for settings in (CloudSettings, EdgeSettings):
        with pytest.raises(BadInput, match=f"_REDIS_URL: .*{why}") as refused:
            settings()
        assert SECRET not in refused.value.detail
    with pytest.raises(ValueError, match=why) as bare:
        RedisStore(url)
    assert SECRET not in str(bare.value)
    assert SECRET not in caplog.text


def test_an_address_is_shown_without_user_and_password() -> None:
    assert place_of("redis://user:s3cret@redis:6380/1") == "redis:6380"
    assert place_of("rediss://:s3cret@redis") == "redis:6379"
    assert has_user("unix:///run/redis.sock?password=s3cret")
    assert not has_user("unix:///run/redis.sock?db=1")
