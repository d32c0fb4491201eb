"""Options of the command line that several commands share, and those of single commands."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from opmatrix.parallel.schedules.named import RUN_BY_RANKS, SCHEDULES, spell_schedules

LARGEST_BATCH = 2**31 - 1  # tokens: indices of rows have 32 bits

# ---- of several commands

ModelName = Annotated[
    str,
    typer.Argument(
        help="minilm, smollm2, a directory with config.json, model.safetensors and tokenizer.json, a .gguf file, or a "
        "name on the hub (org/name@revision, by huggingface_hub);"
        " with --machine also a config.json alone, or a well-known model such as llama2-70b"
    ),
]
Laws = Annotated[
    Path | None,
    typer.Option(
        "--laws",
        metavar="FILE",
        help="your own Python file of laws and approximations; it is run, so give only what you trust",
    ),
]
OwnThings = Annotated[
    Path | None,
    typer.Option(
        "--laws",
        metavar="FILE",
        help="your own Python file that declares the functions, monoids and patterns which a "
        "saved program uses; it is run, so give only what you trust",
    ),
]
DiscoveredKinds = Annotated[
    str, typer.Option("--kinds", metavar="KINDS", help="kinds of operators, with commas: add, relu, and others")
]
Results = Annotated[Path | None, typer.Option("--json", help="where to write all results")]
Origin = Annotated[
    str | None,
    typer.Option("--model", help="the checkpoint that the program was made of; by default the one that it records"),
]
Saved = Annotated[Path, typer.Argument(help="a directory that `opmatrix optimize` wrote")]
ProgramOrExport = Annotated[
    Path, typer.Argument(metavar="DIR|FILE", help="a directory that `opmatrix optimize` wrote, or a file of `export`")
]
Truncate = Annotated[
    bool | None,
    typer.Option(
        "--truncate/--no-truncate", help="cut long texts; by default where the checkpoint has a max_seq_length"
    ),
]

# ---- of `embed`

ShardOfLines = Annotated[
    str | None, typer.Option(metavar="I/N", help="embed the I-th of N parts of the lines, to be joined by `join`")
]
Resumed = Annotated[
    bool | None,
    typer.Option(
        "--resume/--no-resume",
        help="go on where a run to this output was interrupted; by default from 100,000 lines on, and for shards",
    ),
]

# ---- of `generate`

ModelOrSaved = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|DIR",
        help="a checkpoint, whose exact program is searched for, or a directory that `opmatrix optimize` wrote",
    ),
]
MaxTokens = Annotated[int, typer.Option(help="most tokens of the reply")]
Temperature = Annotated[
    float, typer.Option(help="0: the likeliest token; otherwise scores are divided by it and a token is drawn")
]
TopK = Annotated[int | None, typer.Option(help="draw from the K likeliest tokens")]
TopP = Annotated[float, typer.Option(help="draw from the fewest tokens whose probabilities add to P")]
CacheNumber = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="float32|bf16",
        help="the number type of cached keys and values; bf16 rounds them and takes half the memory",
    ),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        "--json-schema", metavar="FILE.json", help="a JSON schema: each reply is JSON of that form (needs llguidance)"
    ),
]
Rules = Annotated[
    Path | None,
    typer.Option(
        "--grammar",
        metavar="FILE.lark",
        help="rules in Lark's notation, from `start`: each reply is a text of them (needs llguidance)",
    ),
]
Seed = Annotated[int, typer.Option(help="seed of the draws: the same seed gives the same text")]

# ---- of `spectrum`

SpectraKind = Annotated[
    str,
    typer.Option(
        "--of",
        metavar="weights|qk|vo|jacobian|error",
        help="weights: stored matrices; qk, vo: W_q W_kᵀ and W_v W_o of each head; jacobian: of each layer, and of the "
        "output by the rows before each layer, on a text; error: of each weight, in the metric of the rows that it "
        "multiplies and of what the output makes of them",
    ),
]
SpectraText = Annotated[
    Path | None,
    typer.Option(
        help="a file of lines, for jacobian (its first 48 tokens, about) and error (1,024); else shipped ones"
    ),
]

# ---- of `optimize`

Error = Annotated[
    float | None,
    typer.Option(
        help="largest relative error of the output on held-out rows; 0: exact programs only; 0.02 if no goal is given"
    ),
]
Goals = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="GOAL",
        help="error<=2%, spearman>=-0.3 (with --pairs) or perplexity<=1.02x (with --text, on "
        "its held-out lines, and --output rows), against the exact program (may be "
        "given again)",
    ),
]
Memory = Annotated[float | None, typer.Option(help="megabytes, of stored weights and buffers together")]
Text = Annotated[
    Path | None,
    typer.Option(
        help="a file of lines: of every four, one is for fitting, one for choosing, two for stating the error"
    ),
]
Tokens = Annotated[
    int | None, typer.Option(max=LARGEST_BATCH, help="the workload: one sentence with this number of tokens")
]
WorkloadText = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|SHARES|REQUEST",
        help="the workload instead: texts, one a line, in batches as `embed` makes them; "
        "shares of batches of sentences x tokens, such as 0.7:1x16,0.3:8x128; or text "
        "that is generated: generate:512+128x8, tokens of a prompt, of its answer, and "
        "the number of sequences at once",
    ),
]
Narrowest = Annotated[str, typer.Option(help="the narrowest number type for weights: float32, bf16, int8 or int4")]
ScoredPairs = Annotated[
    Path | None,
    typer.Option(
        metavar="CSV", help="sentence pairs with scores: programs are judged by this ranking, not by an error"
    ),
]
Corpus = Annotated[
    Path | None,
    typer.Option(metavar="LINES", help="lines of a corpus, without labels, for --keep top10>=0.95 or tau>=0.95"),
]
Judgements = Annotated[
    Path | None,
    typer.Option(
        metavar="TSV", help="query, line and relevance, for --keep ndcg10>=-0.5: names of JSON lines, or line numbers"
    ),
]
Queries = Annotated[
    Path | None, typer.Option(metavar="LINES", help="queries of the corpus; by default one line in ten is a query")
]
Drop = Annotated[
    float | None, typer.Option(help="largest fall of Spearman's correlation (x 100) of the pairs; 0.3 by default")
]
Remove = Annotated[
    str,
    typer.Option(
        metavar="units,heads", help="also try models with fewer hidden units, fewer heads, or both; nothing is trained"
    ),
]
Uniform = Annotated[
    bool, typer.Option("--uniform", help="as many hidden units (and heads) in each layer, as `export --hf` needs them")
]
Lines = Annotated[
    Path | None,
    typer.Option(help="a file of lines, without scores, to fit the remaining weights to; by default lines of --text"),
]
MeasuredErrors = Annotated[
    str,
    typer.Option(
        metavar="near|all",
        help="near: predict errors of single methods, measure those of programs; all: measure those of methods, too",
    ),
]
Output = Annotated[str, typer.Option(help="pooled: one row a text, as the checkpoint declares; rows: one a token")]
AdapterPlace = Annotated[Path | None, typer.Option(metavar="DIR", help="a LoRA adapter of the model, as PEFT saves it")]
Without = Annotated[list[str] | None, typer.Option(help="a law to leave out (may be given again)")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="where to save; ./MODEL.opmatrix by default")]
Page = Annotated[Path | None, typer.Option("--html", metavar="OUT.html", help="where to write the report as a page")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="do not print the phases of the run")]
Elsewhere = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="only predict the times on this machine, such as A100, H100, Ascend910B or TPUv5e"
    ),
]

# ---- of `plan`

Devices = Annotated[int, typer.Option("--devices", min=1, help="the number of devices")]
PlannedMachine = Annotated[
    str,
    typer.Option(
        "--machine", metavar="NAME", help="the kind of device, such as A100, H100 or Ascend910B; local: this machine"
    ),
]
StepBatch = Annotated[int | None, typer.Option("--batch", min=1, help="sequences of a step; by default one a device")]
SequenceTokens = Annotated[
    str | None,
    typer.Option(
        "--seq",
        metavar="N|N:SHARE,..",
        help="tokens of a sequence, by default the most that the model takes; or lengths with their shares of steps",
    ),
]
DeviceMemory = Annotated[
    float | None, typer.Option("--memory", metavar="GB", help="memory of a device, if it differs from the data sheet")
]
Infer = Annotated[
    bool,
    typer.Option(
        "--infer", help="plan a forward pass of the batch, with cached keys and values, instead of a training step"
    ),
]
Carbon = Annotated[float, typer.Option("--carbon", min=0, help="grams of CO2 a kWh; by default the world's mean")]
Flash = Annotated[
    bool, typer.Option("--flash/--no-flash", help="assume fused (flash) attention, which does not store scores")
]
BestPlans = Annotated[int, typer.Option("--keep", min=1, max=100, help="the number of strategies to print")]
PlanRows = Annotated[
    Path | None, typer.Option("--csv", metavar="OUT.csv", help="where to write a row for each printed strategy")
]

ProductType = Annotated[
    str | None,
    typer.Option("--precision", metavar="TYPE", help="number type of products: bf16 (usual), float16, fp8 or mxfp8"),
]
TrainingStack = Annotated[
    str | None,
    typer.Option("--stack", metavar="NAME", help="only what this training stack runs, such as megatron or torchtitan"),
]
PlannedSchedule = Annotated[
    str | None, typer.Option("--schedule", metavar="NAME", help=f"the only pipeline schedule: {', '.join(SCHEDULES)}")
]
MostTensorRanks = Annotated[int | None, typer.Option("--max-tp", min=1, help="tensor ranks, at most")]
OnlyLayout = Annotated[
    str | None,
    typer.Option("--only", metavar="LAYOUT", help='judge this layout, such as "tp 8 pp 4 zero 1", beside the first'),
]
AgainstLayout = Annotated[
    str | None,
    typer.Option("--against", metavar="LAYOUT", help="compare this layout with that of --only, or the first, by part"),
]
NoRing = Annotated[
    bool, typer.Option("--no-ring", help="context ranks exchange heads (Ulysses), and send no keys round a ring")
]
Headroom = Annotated[
    float, typer.Option("--headroom", metavar="SHARE", help="share of a device's memory that is to stay free")
]
ExpertLoad = Annotated[
    float | None,
    typer.Option(
        "--load", metavar="X", help="rows of the busiest expert rank, relative to the mean; by default 1.2, as measured"
    ),
]
EvenLoad = Annotated[bool, typer.Option("--even", help="all experts get equally many rows, as with --load 1")]
Fewest = Annotated[
    bool, typer.Option("--fewest", help="also the fewest devices, up to --devices, where a strategy fits")
]
Within = Annotated[
    float | None, typer.Option("--within", metavar="SECONDS", help="of --fewest: the most that a step may take")
]
FindConstraints = Annotated[
    bool,
    typer.Option(
        "--constraints",
        help="which constraint binds the first, or the layout that is judged: seconds saved with each relaxed alone",
    ),
]
StackSettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", metavar="FILE", help="judge the layout of these settings of the --stack, as --only does"
    ),
]
WrittenSettings = Annotated[
    Path | None,
    typer.Option(
        "--write-settings",
        metavar="OUT|-",
        help="write the layout that is judged, or the first, as settings of the --stack",
    ),
]
MeasuredSteps = Annotated[
    Path | None,
    typer.Option("--calibrate", metavar="STEPS.csv", help="steps that you measured, which scale all predictions"),
]

DevicePools = Annotated[
    str | None,
    typer.Option(
        "--pools", metavar="PHASES", help="divide the devices between two phases: prefill,decode or rollout,train"
    ),
]
ReplyTokens = Annotated[
    int | None, typer.Option("--reply", metavar="N", help="of --pools: tokens of a sequence that are generated")
]
FirstTokenLimit = Annotated[
    float | None, typer.Option("--ttft", metavar="SECONDS", help="of prefill: time to the first token, at most")
]
LaterTokenLimit = Annotated[
    float | None, typer.Option("--tpot", metavar="SECONDS", help="of decode: time per output token, at most")
]
PoolLink = Annotated[
    str | None,
    typer.Option(
        "--pool-link",
        metavar="LEVEL|GB/S",
        help="link between the pools: a level of the machine's, or gigabytes a second of a device",
    ),
]
VariedSizes = Annotated[
    str | None,
    typer.Option("--vary", metavar="SIZES", help="plan other shapes of the model: heads, hidden, layers, experts"),
]
StatedBudget = Annotated[
    str | None, typer.Option("--parameters", metavar="N", help="of --vary: numbers of the model, such as 7e9 or 7e9±2%")
]
PlanTimeline = Annotated[
    Path | None,
    typer.Option(
        "--timeline",
        metavar="OUT.svg|OUT.json",
        help="where to draw the first strategy's pipeline, as a picture or a Chrome trace",
    ),
]
ExplainPlan = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="print every constant, number of a data sheet and formula in the prediction of the first strategy",
    ),
]

# ---- of `partition`, besides those of axes

Stages = Annotated[
    str | None, typer.Option(metavar="N,N,..", help="layers of each stage; by default as equal as possible")
]
NumberType = Annotated[
    str, typer.Option("--values", help="number type of activations and messages: bf16, float16 or float32")
]
WeightType = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="KIND|NAMES=KIND,..",
        help="a number type or storage format of weights, with its parameters, such as int8 or '*mlp*=nm:n=2:m=4,bf16'",
    ),
]
CrossingType = Annotated[
    str | None,
    typer.Option(
        "--crossing",
        metavar="KIND|AXIS=KIND,..",
        help="number type of values in collectives, if it differs from --values; weights=KIND for gathered weights",
    ),
]
Cuts = Annotated[
    list[str] | None,
    typer.Option(
        "--cut",
        metavar="NAMES=WAY",
        help="shard weights of these names by columns or by rows over tp, or keep them whole; "
        "other placements follow (may be given again)",
    ),
]
Train = Annotated[
    bool,
    typer.Option(
        "--train", help="a training step: backward, saved values, schedule, peak; --batch is the batch of a step"
    ),
]
PipelineOrder = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help=f"pipeline schedule of a training step: {spell_schedules()}; V chunks a stage",
    ),
]
RankOrder = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help=f"pipeline schedule of a training step: {spell_schedules(RUN_BY_RANKS)}; V chunks a stage",
    ),
]
MicroBatches = Annotated[int, typer.Option("--micro-batches", min=1, help="micro-batches of a step")]
Recompute = Annotated[
    str,
    typer.Option(
        help="recomputation in backward: none, selective (scores and their softmax) or full (all but a layer's input)"
    ),
]
Dropout = Annotated[float, typer.Option(help="dropout rate in training; its masks are saved")]
StateBytes = Annotated[
    str, typer.Option("--state", help="bytes a parameter of weights, gradients and Adam: 16, 18 or 20")
]
Timeline = Annotated[
    Path | None,
    typer.Option(metavar="OUT.svg|OUT.json", help="where to draw a step of training, as a picture or a Chrome trace"),
]
Form = Annotated[
    str,
    typer.Option(
        help="table; latex; python: a function of the sizes; derivation: the sharding rule of "
        "each step; placements: of weights, as torch's DTensor has them, in JSON; "
        "workflow: tasks, data and dependencies, in YAML"
    ),
]

# ---- of each command: lines that its help and docs/commands.md show, and a test runs

EXAMPLES = {  # command -> lines that show it, each run by a test
    "optimize": [
        "opmatrix optimize minilm --error 0.02 --out fast.opmatrix --json found.json",
        "opmatrix optimize minilm --without spread --without associate --quiet --html report.html",
    ],
    "distil": ["opmatrix distil minilm --text lines.txt --minutes 15 --out small"],
    "calibrate": ["opmatrix calibrate --json measured.json", "opmatrix calibrate && opmatrix doctor"],
    "compile": ["opmatrix compile minilm.opmatrix", "opmatrix compile minilm.opmatrix --into minilm.opmatrix/cache"],
    "export": [
        "opmatrix export minilm.opmatrix --onnx minilm.onnx",
        "opmatrix export minilm.opmatrix/front/0 --torch exact.pt2",
        "opmatrix export minilm.opmatrix/front/0 --hf exact",
        "opmatrix export smollm2.opmatrix --gguf small.gguf",
        "opmatrix export minilm.opmatrix --for onnxruntime --onnx fast.onnx --at 1x16,8x12",
    ],
    "run": [
        'opmatrix run minilm.opmatrix "a sentence" "another"',
        'opmatrix run smollm2.opmatrix "the capital of France is" --json next.json',
    ],
    "generate": [
        'opmatrix generate smollm2 "the capital of France is"',
        'opmatrix generate smollm2.opmatrix "the capital of France is" --temperature 0.8 --seed 7',
    ],
    "chat": [
        'cat questions.txt | opmatrix chat smollm2.opmatrix --system "answer briefly"',
        "cat questions.txt | opmatrix chat smollm2.opmatrix --temperature 0.8 --seed 7 --json turns.json",
    ],
    "embed": [
        "opmatrix embed minilm.opmatrix lines.txt --out vectors.npy",
        "cat lines.txt | opmatrix embed minilm.opmatrix - --out vectors.npy --skip-bad",
        "opmatrix embed minilm.opmatrix lines.txt --out part2.npy --shard 2/4",
    ],
    "join": ["opmatrix join part1.npy part2.npy part3.npy part4.npy --out vectors.npy"],
    "serve": [
        "opmatrix serve minilm.opmatrix --port 8000",
        "opmatrix serve minilm.opmatrix --processes 2 --truncate --max-tokens 512 --queue 4096",
    ],
    "evaluate": [
        "opmatrix evaluate minilm minilm.opmatrix --pairs pairs.csv",
        "opmatrix evaluate smollm2 --text text.txt --tokens 512",
    ],
    "doctor": ["opmatrix doctor", "opmatrix doctor --json machine.json"],
    "laws": ["opmatrix laws --kind value", "opmatrix laws --laws mine.py --kind own", "opmatrix laws --json laws.json"],
    "discover": [
        "opmatrix discover --kinds add,compose --size 2 --out new_laws.py",
        "opmatrix discover --kinds compose,relu,tanh --minutes 1",
    ],
    "explain": ["opmatrix explain minilm.opmatrix --json told.json", "opmatrix explain minilm.opmatrix/front/1 --full"],
    "report": ["opmatrix report minilm.opmatrix", "opmatrix report minilm.opmatrix --out minilm.html"],
    "profile": [
        "opmatrix profile minilm.opmatrix --tokens 16",
        "opmatrix profile minilm.opmatrix --sentences 8 --tokens 12 --rounds 5 --json steps.json",
    ],
    "verify": [
        "opmatrix verify minilm.opmatrix",
        "opmatrix verify minilm.opmatrix --model minilm --json checks.json",
        "opmatrix verify fast.onnx --program minilm.opmatrix",
    ],
    "plan": [
        "opmatrix plan gpt2 --devices 16 --machine A100 --batch 32 --seq 512",
        "opmatrix plan gpt2 --devices 4 --machine H100 --batch 16 --infer --keep 3",
        'opmatrix plan gpt2 --devices 16 --machine A100 --batch 32 --seq 512 --only "tp 2 pp 2" --against "tp 4"',
        'opmatrix plan gpt2 --devices 4 --machine A100 --batch 32 --only "pp 2 zero 1 recompute none" --constraints',
        "opmatrix plan gpt2 --devices 4 --machine A100 --batch 32 --seq 256:0.7,1024:0.3",
        "opmatrix plan gpt2 --devices 4 --machine H100 --batch 8 --seq 512 --pools prefill,decode --reply 128",
    ],
    "partition": [
        "opmatrix partition gpt2 --tp 4 --sequence --batch 8 --tokens 512 --machine A100",
        "opmatrix partition gpt2 --tp 2 --symbolic",
    ],
    "launch": [
        "opmatrix launch minilm --ranks 4 --dp 2 --tp 2",
        "opmatrix launch minilm --cp 2 --context ulysses --trace trace.svg",
    ],
    "spectrum": [
        "opmatrix spectrum minilm",
        "opmatrix spectrum minilm --of qk --out heads.svg",
        "opmatrix spectrum minilm --of error --text lines.txt --out errors.svg --json errors.json",
    ],
}

STATUSES = {
    0: "all went well",
    1: "a check of `verify` failed, or the output could not be written",
    2: "bad input",
    70: "a fault of opmatrix itself, kept in a file",
    130: "an interruption",
    143: "SIGTERM",
}


def show_examples(lines: Sequence[str]) -> str:
    """Return the examples below a command's help, a line each."""
    return "\n\n".join(["Examples:", *lines])


def show_statuses() -> str:
    """Return the exit statuses, as a sentence."""
    return "Exit status: " + "; ".join(f"{status}: {what}" for status, what in STATUSES.items()) + "."


# ---- of the whole command line

FIRST_LINES = {  # first command lines -> the work of each
    "opmatrix doctor": "check this machine",
    "opmatrix optimize minilm": "find and save its best program",
    'opmatrix run minilm.opmatrix "a sentence"': "embed a sentence by it",
    "opmatrix explain minilm.opmatrix": "show how much each law saved",
    "opmatrix verify minilm.opmatrix": "check its certificate again",
}

PANELS = {  # headings of commands -> a short line for each of them
    "Programs": {
        "optimize": "Find, verify, measure and save the cheapest program of a MODEL.",
        "distil": "Train a smaller student of a MODEL on unlabelled text.",
        "run": "Run a saved program on sentences.",
        "generate": "Write what follows a prompt, token by token.",
        "chat": "Reply to lines of a chat, by the model's template.",
        "embed": "Embed every line of a FILE with a saved program.",
        "join": "Join the shards of a corpus that `embed` wrote.",
        "serve": "Serve embeddings and ranks of texts over HTTP.",
        "evaluate": "Score checkpoints and saved programs, by pairs or by a text.",
        "explain": "Show a saved program before and after, and each law's saving.",
        "report": "Write the report of a saved program as one page of HTML.",
        "profile": "Show the time of each kind of step of a saved program.",
        "verify": "Repeat the checks of a saved program's certificate.",
        "compile": "Compile a saved program's kernels in advance, for all users.",
        "export": "Write a saved program as ONNX, for torch, or as a checkpoint.",
    },
    "Machines and laws": {
        "calibrate": "Measure this machine: peaks, bandwidths, BLAS, kernels.",
        "doctor": "Show processor, libraries and caches, and settings that hurt.",
        "laws": "List every law: its statement, its guard, its source.",
        "discover": "Find laws among small terms, prove or try them, write a file.",
        "spectrum": "Print spectra of a MODEL's weights, heads, layers or errors.",
    },
    "Many devices": {
        "plan": "Find the best strategy to train or run a MODEL on many devices.",
        "partition": "Print cost formulas of a MODEL that is partitioned over ranks.",
        "launch": "Run a MODEL on ranks, as processes of this machine.",
    },
}


def show_first() -> str:
    """The lines to begin with, as they stand in the help of the whole; \b keeps their ends."""
    wide = max(map(len, FIRST_LINES))
    return "\n".join(["\b", "Begin with:", *(f"  {line:{wide}}  {what}" for line, what in FIRST_LINES.items())])
