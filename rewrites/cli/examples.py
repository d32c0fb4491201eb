"""Two lines at least for each command: its help shows them, docs/commands.md has them, a test runs them."""
from collections.abc import Sequence

EXAMPLES = {                                                # command -> lines that show it, each run by a test
    "optimize": ["opmatrix optimize minilm --error 0.02 --out fast.opmatrix --json found.json",
                 "opmatrix optimize minilm --without spread --without associate --quiet --html report.html"],
    "calibrate": ["opmatrix calibrate", "opmatrix calibrate && opmatrix doctor"],
    "run": ['opmatrix run minilm.opmatrix "a sentence" "another"',
            'opmatrix run smollm2.opmatrix "the capital of France is"'],
    "generate": ['opmatrix generate smollm2 "the capital of France is"',
                 'opmatrix generate smollm2.opmatrix "the capital of France is" --temperature 0.8 --seed 7'],
    "embed": ["opmatrix embed minilm.opmatrix lines.txt --out vectors.npy",
              "cat lines.txt | opmatrix embed minilm.opmatrix - --out vectors.npy --skip-bad"],
    "evaluate": ["opmatrix evaluate minilm minilm.opmatrix --pairs pairs.csv",
                 "opmatrix evaluate smollm2 --text text.txt --tokens 512"],
    "doctor": ["opmatrix doctor", "opmatrix doctor --json machine.json"],
    "laws": ["opmatrix laws --kind value", "opmatrix laws --laws mine.py --kind own", "opmatrix laws --json laws.json"],
    "explain": ["opmatrix explain minilm.opmatrix", "opmatrix explain minilm.opmatrix/front/1 --full"],
    "report": ["opmatrix report minilm.opmatrix", "opmatrix report minilm.opmatrix --out minilm.html"],
    "profile": ["opmatrix profile minilm.opmatrix --tokens 16",
                "opmatrix profile minilm.opmatrix --sentences 8 --rounds 5 --json steps.json"],
    "verify": ["opmatrix verify minilm.opmatrix", "opmatrix verify minilm.opmatrix --model minilm --json checks.json"],
    "plan": ["opmatrix plan gpt2 --devices 16 --machine A100 --batch 32 --seq 512",
             "opmatrix plan gpt2 --devices 4 --machine H100 --batch 16 --infer --keep 3"],
    "partition": ["opmatrix partition gpt2 --tp 4 --sequence --batch 8 --tokens 512 --machine A100",
                  "opmatrix partition gpt2 --tp 2 --symbolic"],
    "launch": ["opmatrix launch minilm --ranks 4 --dp 2 --tp 2",
               "opmatrix launch minilm --cp 2 --context ulysses --trace trace.svg"],
    "spectrum": ["opmatrix spectrum minilm", "opmatrix spectrum minilm --out spectra.svg --json spectra.json"]}

STATUSES = {0: "all went well", 1: "a check of `verify` failed, or what is printed could not be written",
            2: "bad input", 70: "a fault of opmatrix itself, kept in a file", 130: "an interruption"}


def show_examples(lines: Sequence[str]) -> str:
    """Examples as they stand below a command's help, a line each."""
    return "\n\n".join(["Examples:", *lines])


def show_statuses() -> str:
    """What ends with which status, a line each."""
    return "\n\n".join(["Exit status:", *(f"{status}: {what}" for status, what in STATUSES.items())])
