"""Users of a cloud: `token add`, `list` and `remove`. For its administrator."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.options import Format, FormatOption, UrlOption, connect

NameArgument = Annotated[str, typer.Argument(help="Name of the user.")]

token = typer.Typer(
    name="token", help="Add, list and remove users of a cloud, each with a token of their own.", no_args_is_help=True
)


@token.command()
def add(
    name: NameArgument,
    max_runs: Annotated[
        int | None, typer.Option(min=0, help="Runs of theirs that have not ended, at a time; default: the cloud's.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=0, help="Bytes that their results folders may hold; default: the cloud's.")
    ] = None,
    url: UrlOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Add a user and print the token, this once: with it in STRATA_API_TOKEN they use the cloud."""
    from strata.output import print_json, stderr

    with connect(url) as client:
        answer = client.add_token(name, max_runs=max_runs, max_bytes=max_bytes)
    if format is Format.json:
        print_json(answer.model_dump(mode="json"), indent=None)
        return
    typer.echo(answer.token)
    stderr().print(f"the token of {answer.name} is shown this once", highlight=False, markup=False)


@token.command("list")
def list_tokens(url: UrlOption = None, format: FormatOption = Format.table) -> None:
    """List the users with their limits and what they use; a user sees themself alone."""
    from strata.output import print_json, stdout
    from strata.tables import users_table

    with connect(url) as client:
        users = client.users().users
    if format is Format.json:
        print_json([each.model_dump(mode="json") for each in users])
    else:
        stdout().print(users_table(users) if users else "no users")


@token.command()
def remove(name: NameArgument, url: UrlOption = None) -> None:
    """Make a user's token void. Their runs stay, and go on."""
    from strata.output import stdout

    with connect(url) as client:
        client.remove_token(name)
    stdout().print(f"the token of {name} is void", highlight=False, markup=False)
