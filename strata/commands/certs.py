"""Identities of nodes in secure mode: the authority and its join tokens (`certs`), `identities`, `revoke`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.core.errors import BadInput, NotFound
from strata.options import Format, FormatOption, UrlOption, connect

if TYPE_CHECKING:
    from shared.service.api.identities import IdentityInfo
    from strata.api.client import Client

Folder = Annotated[Path, typer.Argument(help="The folder of the authority: keep it secret.")]
ClassOption = Annotated[str | None, typer.Option("--class", help="edge, device or fleet; default: whichever has it.")]

certs = typer.Typer(
    name="certs", help="Make or import the authority that signs nodes' certificates, and its join tokens.",
    no_args_is_help=True,
)  # fmt: skip


@certs.command()
def init(folder: Folder) -> None:
    """Make an authority and the secret of its join tokens."""
    from shared.identity.authority import make_authority
    from strata.output import stdout

    authority = make_authority()
    try:
        authority.save(folder)
    except FileExistsError:
        raise BadInput(f"{folder} holds an authority already", field="folder") from None
    stdout().print(f"authority {authority.fingerprint} in {folder}", highlight=False, soft_wrap=True)


@certs.command("import")
def import_authority(
    folder: Folder,
    key: Annotated[Path, typer.Option(help="The authority's private key (PEM, curve P-256, not encrypted).")],
    certificate: Annotated[Path, typer.Option(help="The authority's certificate (PEM).")],
) -> None:
    """Use an authority that you have."""
    from shared.identity.authority import read_authority
    from strata.output import stdout

    try:
        authority = read_authority(key.read_bytes(), certificate.read_bytes())
        authority.save(folder)
    except FileExistsError:
        raise BadInput(f"{folder} holds an authority already", field="folder") from None
    except OSError as error:
        raise BadInput(f"{error.filename} cannot be read: {error.strerror}") from None
    stdout().print(f"authority {authority.fingerprint} in {folder}", highlight=False, soft_wrap=True)


@certs.command()
def token(
    node_class: Annotated[str, typer.Argument(metavar="CLASS", help="edge, device or fleet.")], folder: Folder
) -> None:
    """Print the join token with which nodes of a class get their certificates."""
    from shared.identity.authority import load_authority
    from shared.identity.join_tokens import load_tokens
    from shared.identity.names import CLASSES

    known = [name for name in CLASSES if name != "cloud"]
    if node_class not in known:
        raise BadInput(f"no class {node_class!r}: {', '.join(known)}", field="class")
    tokens = load_tokens(folder, load_authority(folder).fingerprint)
    typer.echo(str(tokens.of(next(name for name in known if name == node_class))))


@certs.command()
def rotate(folder: Folder) -> None:
    """Make all join tokens void; nodes that have a certificate keep it. A running cloud notices."""
    from shared.identity.authority import load_authority
    from shared.identity.join_tokens import draw_secret

    load_authority(folder)
    draw_secret(folder)


def identities(url: UrlOption = None, format: FormatOption = Format.table) -> None:
    """List the nodes that have certificates."""
    from strata.output import print_json, stdout
    from strata.tables import identities_table

    with connect(url) as client:
        found = client.identities().identities
    if format is Format.json:
        print_json([each.model_dump(mode="json") for each in found])
    else:
        stdout().print(identities_table(found))


def revoke(
    name: Annotated[str, typer.Argument(help="Name of an edge or a fleet, id or name of an agent.")],
    node_class: ClassOption = None,
    url: UrlOption = None,
) -> None:
    """Revoke the certificates of a node: no tier answers it any more, and its name is free for another key."""
    from strata.output import stdout

    with connect(url) as client:
        found = _found(client, name, node_class)
        client.revoke(found.node_class, found.name)
    stdout().print(f"{found.node_class} {found.name} has no valid certificate any more", highlight=False)


def _found(client: Client, name: str, node_class: str | None) -> IdentityInfo:
    """The node of that name, or the agent whose name it is.

    Raises:
        NotFound: there is none.
        BadInput: there are several.
    """
    named = {name, *(agent.agent for agent in client.agents().agents if agent.name == name)}
    known = client.identities().identities
    found = [each for each in known if each.name in named and node_class in (None, each.node_class)]
    if not found:
        raise NotFound(f"no node {name!r} has a certificate; `strata identities` lists those that have")
    if len(found) > 1:
        several = ", ".join(f"{each.node_class} {each.name}" for each in found)
        raise BadInput(f"{name!r} is several nodes: {several}; say which with --class or by id", field="name")
    return found[0]
