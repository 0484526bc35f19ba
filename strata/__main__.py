"""The program of the command `strata`, also as `python -m strata`."""

from shared.runtime.import_path import installed_first


def main() -> None:
    """Run the command, with installed modules before those of the same names in folders of the user's."""
    installed_first()
    from strata.main import app_entry

    app_entry()


if __name__ == "__main__":
    main()
