"""The command `opmatrix`. What must be in the environment before numpy is imported is put there first."""
import os
import sys

ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}


def main() -> None:
    """Runs a command. Bad input is one line on stderr and exit status 2."""
    for name, value in ENVIRONMENT.items():                 # one pool of threads: numba's (docs/architecture.md)
        os.environ.setdefault(name, value)
    from rewrites.commands import app
    from rewrites.errors import BAD_INPUT
    try:
        app()
    except BAD_INPUT as error:
        print(f"opmatrix: {' '.join(str(error.args[0] if error.args else error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("opmatrix: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
