"""The command `opmatrix`. What must be in the environment before numpy is imported is put there first."""
import sys

from rewrites.environment import prepare


def main() -> None:
    """Runs a command. Bad input is one line on stderr and exit status 2."""
    prepare()
    from rewrites.commands import INTERRUPTED, USAGE, app
    from rewrites.errors import BAD_INPUT
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False))
    except USAGE as error:
        said(error.format_message(), 2)
    except BAD_INPUT as error:
        said(str(error.args[0] if error.args else error), 2)
    except INTERRUPTED:
        said("interrupted", 130)


def said(message: str, status: int) -> None:
    """One line on stderr, and the end."""
    print(f"opmatrix: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
