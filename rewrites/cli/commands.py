"""The commands: optimize, distil, calibrate, compile, export, run, generate, chat, embed, join, serve, evaluate,
doctor, laws, discover, explain, report, profile, verify, plan, partition, launch, spectrum."""

import time
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from formats.core.errors import InputError
from formats.disk.files import writable
from rewrites.cli import options
from rewrites.cli.option_groups import AddressOptions, ServingOptions, with_groups
from rewrites.cli.options import EXAMPLES, PANELS, show_examples, show_first, show_statuses
from rewrites.cli.outputs import possible, say, write_results
from rewrites.cli.rank_commands import launch_model, partition_model, plan_model

if TYPE_CHECKING:
    from rewrites.verify.user_laws import UserDeclarations


app = typer.Typer(
    pretty_exceptions_enable=False,
    epilog=show_statuses(),
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A transformer in; the cheapest equal program that laws reach comes out, verified, and runs.\n\n"
    + show_first(),
)


def version(asked: bool) -> None:
    """Print the version, and exit."""
    if asked:  # every command calls this, and most need no such imports
        from rewrites.report.installed import installed

        say(f"opmatrix {installed('opmatrix')}")
        raise typer.Exit


@app.callback()
def show_version(
    asked: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


@app.command()
def optimize(
    context: typer.Context,
    model: options.ModelName,
    error: options.Error = None,
    goals: options.Goals = None,
    memory: options.Memory = None,
    text: options.Text = None,
    tokens: options.Tokens = None,
    workload: options.WorkloadText = None,
    number_type: options.Narrowest = "int8",
    pairs: options.ScoredPairs = None,
    corpus: options.Corpus = None,
    queries: options.Queries = None,
    judgements: options.Judgements = None,
    drop: options.Drop = None,
    remove: options.Remove = "",
    calibrate: options.Lines = None,
    uniform: options.Uniform = False,
    measure: options.MeasuredErrors = "near",
    output: options.Output = "pooled",
    adapter: options.AdapterPlace = None,
    own: options.Laws = None,
    without: options.Without = None,
    out: options.Out = None,
    results: options.Results = None,
    html: options.Page = None,
    quiet: options.Quiet = False,
    machine: options.Elsewhere = None,
) -> None:
    """Find, verify, measure and save the cheapest program of a MODEL."""
    if machine is not None:
        from rewrites.cli.predict import elsewhere

        possible({"--json": (results, writable)}, model)
        summary, bounds = elsewhere(model, machine, tokens)
        say(summary)
        write_results(bounds, results)
        return
    from rewrites.workload.phases import Report, silence_stdout

    report = Report(quiet=quiet, began=context.obj)
    with report.phase("start", brief=True):
        from opmatrix.files.saving import attempt
        from rewrites.laws import EXACT_LAWS
        from rewrites.lowering.mixed import parse_mix
        from rewrites.metrics.reported import Named
        from rewrites.report.pages.html_report import page_place, write_html
        from rewrites.report.results import printed, save
        from rewrites.run import optimize as find
        from rewrites.workload.resolve import name_places

        refuse_weightless(model)
        target = out or Path(f"{Path(model).resolve().name}.opmatrix")
        refuse(memory, number_type, output)
        possible(
            {"--out": (target, attempt), "--json": (results, writable), "--html": (html, page_place)},
            model,
            text,
            workload,
            pairs,
            corpus,
            queries,
            judgements,
            calibrate,
            adapter,
            own,
        )
        declared, laws = declarations(own), Named.of(own)
    with silence_stdout():
        result = find(
            model,
            error=error,
            keep=tuple(goals or ()),
            memory=memory and memory * 1e6,
            text=str(text) if text else None,
            tokens=tokens,
            workload=workload and parse_mix(workload),
            number_type=number_type,
            pairs=pairs,
            corpus=corpus,
            queries=queries,
            judgements=judgements,
            drop=drop,
            output=output,
            adapter=adapter,
            remove=tuple(filter(None, remove.split(","))),
            calibrate=calibrate,
            uniform=uniform,
            leave_out=tuple(without or ()),
            laws=(*EXACT_LAWS, *declared.laws),
            approximations=declared.approximations,
            measure=measure,
            report=report,
        )
        figures = save(result, target, laws, name_places(model, adapter))
    say(printed(figures, target))
    write_results(figures, results)
    write_html(figures, html)


@app.command()
def distil(
    context: typer.Context,
    model: options.ModelName,
    text: Annotated[Path, typer.Option(metavar="FILE", help="unlabelled text: 256 different lines or more")],
    out: Annotated[
        Path | None, typer.Option(help="where to save the student; by default MODEL.student; nothing may be there")
    ] = None,
    student: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="train this program of the MODEL, in float32, instead of removing anything"),
    ] = None,
    units: Annotated[float, typer.Option(help="share of hidden units that the student keeps")] = 0.5,
    heads: Annotated[float, typer.Option(help="share of heads that the student keeps")] = 0.5,
    tokens: Annotated[int, typer.Option(min=2, help="most tokens of a text")] = 128,
    minutes: Annotated[float, typer.Option(help="minutes of training")] = 15.0,
    steps: Annotated[int | None, typer.Option(help="steps of training, instead of minutes")] = None,
    batch: Annotated[int, typer.Option(help="tokens of a step, about")] = 1024,
    rate: Annotated[float, typer.Option(help="largest learning rate of AdamW")] = 2e-4,
    sparsity: Annotated[float, typer.Option(help="share of the entries of matrices that are pruned on the way")] = 0.0,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Train a smaller student of a MODEL on unlabelled text, save it as a program, certified against the MODEL. It
    learns the MODEL's embeddings, or the distribution of its next token. An interrupt ends the training, and the best
    state becomes the program; a run that was killed goes on where it was. It needs torch."""
    from rewrites.workload.phases import Report, silence_stdout

    report = Report(quiet=quiet, began=context.obj)
    with report.phase("start", brief=True):
        from rewrites.approximate.students.distilled import check_target
        from rewrites.approximate.students.distilled import distil as train

        target = out or Path(f"{Path(model).resolve().name}.student")
        possible({"--out": (target, check_target)}, model, text, student)
    with silence_stdout():
        distilled = train(
            model,
            text,
            target,
            student=student,
            units=units,
            heads=heads,
            tokens=tokens,
            minutes=minutes,
            steps=steps,
            batch=batch,
            rate=rate,
            sparsity=sparsity,
            seed=seed,
            report=report,
        )
    say(f"{distilled}\nsaved     {target}")


def refuse_weightless(model: str) -> None:
    """Raise InputError for the name of a configuration, which has no weights."""
    from rewrites.search.planned import weightless

    if weightless(model):
        raise InputError(
            f"{model}: a configuration has no weights to optimize: give their directory, or --machine NAME to predict"
        )


def declarations(file: Path | None) -> "UserDeclarations":
    """Load the declarations of a user's file; empty without one."""
    from rewrites.verify.user_laws import UserDeclarations, load_laws

    return UserDeclarations() if file is None else load_laws(file)


def refuse(memory: float | None, number_type: str, output: str) -> None:
    """Check options that can be wrong before the work begins. Raises InputError, which names the option."""
    from rewrites.lowering.representations import check_budgets
    from rewrites.workload.workload import check_output

    check_budgets(memory and 1e6 * memory, number_type)
    check_output(output)


@app.command()
def calibrate(context: typer.Context, results: options.Results = None) -> None:
    """Measure this machine, a minute or two once kernels are compiled: peaks, bandwidths, the fastest BLAS, and the
    price of every kernel as a formula of its sizes."""
    from rewrites.workload.phases import Report, silence_stdout

    possible({"--json": (results, writable)})
    report = Report(began=context.obj)
    with report.phase("start", brief=True):
        from rewrites.cli.machine.calibrate import calibrate_machine
    with silence_stdout():
        summary, figures = calibrate_machine(report)
    say(summary)
    write_results(figures, results)


@app.command("compile")
def compile_program(
    context: typer.Context,
    directory: options.Saved,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="CACHE",
            help=(
                "a directory to store kernels in, such as DIRECTORY/cache; set OPMATRIX_CACHE to it where the "
                "program runs"
            ),
        ),
    ] = None,
    own: options.OwnThings = None,
) -> None:
    """Compile all kernels of a saved program for this processor in advance, into the user's cache or another one, for
    all users to read. A process that runs the program later compiles nothing, and needs no place to write."""
    from rewrites.cli.machine.calibrate import compile_into

    say(compile_into(directory, cache, own, context.obj))


@app.command("export")
def export_program(
    directory: options.Saved,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", metavar="FILE", help="write an ONNX file of opset 21 (needs onnx)")
    ] = None,
    torch: Annotated[
        Path | None, typer.Option("--torch", metavar="FILE", help="write a program of torch.export (needs torch)")
    ] = None,
    hf: Annotated[
        Path | None,
        typer.Option("--hf", metavar="DIR", help="write a directory that transformers opens as the plain class"),
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option("--gguf", metavar="FILE", help="write a GGUF file, which llama.cpp runs (needs gguf)")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--for", help="write the fastest export of the front within its goals: onnxruntime, openvino, torch"
        ),
    ] = None,
    at: Annotated[str, typer.Option("--at", help="sentences x tokens that --for times")] = "1x128",
    caches: Annotated[
        bool, typer.Option("--caches", help="of a language model: keys and values as inputs and outputs")
    ] = False,
    own: options.OwnThings = None,
) -> None:
    """Write a saved program for other runtimes: token ids and a mask of any batch and length in, sentence embeddings,
    rows or logits out, in float32; or as a checkpoint again. `--for` spells whole numbers for a runtime, times the
    programs of the front there, and keeps the fastest. `--caches` writes one graph for prompts and for steps."""
    from opmatrix.exports.checkpoints.gguf_file import export_gguf
    from opmatrix.exports.checkpoints.plain_files import export_plain
    from opmatrix.exports.exported_files import check_place, export_files
    from opmatrix.runtime.program import Program

    places = {"--onnx": onnx, "--torch": torch, "--hf": hf, "--gguf": gguf}
    targets = {option: (place, check_place) for option, place in places.items()}
    if not any(places.values()):
        raise InputError(
            "export: there is nothing to write: give --onnx FILE, --torch FILE, --hf DIR, --gguf FILE, or several"
        )
    if caches and not (onnx or torch):
        raise InputError("export: --caches is for --onnx FILE and --torch FILE: a checkpoint has no caches")
    possible(targets, directory, own)
    if runtime:
        from rewrites.metrics.targets import export_for, parse_shapes

        say(export_for(directory, runtime, onnx, torch, parse_shapes(at), own, caches))
        return
    program = Program.load(directory, laws=own)
    if onnx or torch:
        say(export_files(program, onnx, torch, caches))
    if hf:
        say(export_plain(program, hf))
    if gguf:
        say(export_gguf(program, gguf))


@app.command()
def run(
    directory: options.Saved,
    text: Annotated[list[str], typer.Argument(help="sentences")],
    truncate: options.Truncate = None,
    results: options.Results = None,
    own: options.OwnThings = None,
) -> None:
    """Run a saved program on text: print the embedding of each sentence, as `embed` computes it, and the similarity of
    the sentences; for a language model, the likeliest next tokens of each; for a model that scores, the scores of each
    sentence behind the first, as a pair with it."""
    from opmatrix.runtime.program import Program
    from rewrites.metrics.texts_run import run_texts

    possible({"--json": (results, writable)}, directory, own)
    summary, figures = run_texts(Program.load(directory, laws=own), text, truncate)
    say(summary)
    write_results(figures, results)


@app.command("generate")
def generate_text(
    context: typer.Context,
    model: options.ModelOrSaved,
    prompt: Annotated[str, typer.Argument(help="the text to continue")],
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = None,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    cache: options.CacheNumber = None,
    schema: options.Schema = None,
    grammar: options.Rules = None,
    own: options.OwnThings = None,
    results: options.Results = None,
    quiet: options.Quiet = False,
) -> None:
    """Continue a prompt token by token, by a language MODEL's exact program or by a saved one. The text is the same
    each time; with a temperature it is drawn from a seed."""
    from rewrites.cli.generate import write_reply

    write_reply(
        model,
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        cache=cache,
        schema=schema,
        grammar=grammar,
        results=results,
        quiet=quiet,
        own=own,
        began=context.obj,
    )


@app.command("chat")
def chat_by_lines(
    context: typer.Context,
    model: options.ModelOrSaved,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="a first message, of the role system")] = None,
    tools: Annotated[Path | None, typer.Option(metavar="FILE.json", help="tools, as the template has them")] = None,
    template: Annotated[str | None, typer.Option(metavar="NAME", help="one of the model's templates")] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="end a reply before this text")] = None,
    control_tokens: Annotated[
        bool, typer.Option("--control-tokens", help="take what spells a control token for that token, not for text")
    ] = False,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = None,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    cache: options.CacheNumber = None,
    schema: options.Schema = None,
    grammar: options.Rules = None,
    own: options.OwnThings = None,
    results: options.Results = None,
    quiet: options.Quiet = False,
) -> None:
    """Chat with a language model by its chat template (needs jinja2): each line of the standard input is a message. A
    turn computes only its new tokens."""
    from opmatrix.inference.chat.chat_options import ChatRequest
    from rewrites.cli.chatting.chat_lines import hold_chat
    from rewrites.cli.chatting.grammar_files import read_grammar

    possible({"--json": (results, writable)}, model, own, tools, schema, grammar)
    request = ChatRequest(
        template=template,
        control_tokens=control_tokens,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        cache=cache,
        stop=tuple(stop or ()),
        grammar=read_grammar(schema, grammar),
    )
    hold_chat(model, request, system=system, tools=tools, results=results, quiet=quiet, own=own, began=context.obj)


@app.command("embed")
def embed_file(
    directory: options.Saved,
    file: Annotated[str, typer.Argument(help="a file of texts, one a line; - for the standard input")],
    out: Annotated[Path, typer.Option(metavar="OUT.npy", help="where to write float32, a row for each line")],
    rows: Annotated[int | None, typer.Option(help="approximate number of tokens of a batch")] = None,
    truncate: options.Truncate = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="write a row of NaN for a line that cannot be embedded")
    ] = False,
    prompt: Annotated[
        str | None, typer.Option(metavar="NAME", help="put this prompt of the checkpoint before every line")
    ] = None,
    shard: options.ShardOfLines = None,
    resume: options.Resumed = None,
    own: options.OwnThings = None,
) -> None:
    """Embed every line of a FILE with a saved program, one row a line; the output is written whole or not at all. Rows
    are pooled as the checkpoint's 1_Pooling and Normalize declare, by default to the mean, scaled to length one. A
    language model writes the scores of the token after each line. A run over a large FILE goes on where it was
    interrupted, and does not replace an output."""
    from opmatrix.inference import embed
    from opmatrix.inference.corpora.embedded_corpus import is_resumable, write_corpus
    from opmatrix.runtime.program import Program

    possible({"--out": (out, embed.replaceable)}, directory, None if file == "-" else file, own)
    resumable = is_resumable(file, shard, resume)
    program, start = Program.load(directory, laws=own), time.perf_counter()
    texts = embed.read_stdin() if file == "-" else Path(file)
    named = None if prompt is None else program.pooling.named_prompt(prompt)
    how = embed.reading("standard input" if file == "-" else file, truncate, skip_bad, named)
    if resumable:
        say(write_corpus(program, Path(file), out, how, shard, embed.BATCH_ROWS if rows is None else rows))
        return
    blocks = embed.stream(program, texts, embed.BATCH_ROWS if rows is None else rows, how)
    count, width = embed.write_npy(embed.followed(blocks, embed.quantity(texts)), out)
    seconds = time.perf_counter() - start
    say(
        f"{count} texts x {width} numbers in {out}, {seconds:.1f} s, {count / seconds:.0f} texts/s"
        + embed.outcome(how, program.tokenizer)
    )


@app.command()
def join(
    shards: Annotated[
        list[Path], typer.Argument(metavar="SHARD.npy...", help="all files that `opmatrix embed --shard` wrote")
    ],
    out: Annotated[Path, typer.Option(metavar="OUT.npy", help="where to write the rows of all, in their order")],
) -> None:
    """Join the shards of a corpus into one array, equal to the bit to that of a run over the whole file."""
    from opmatrix.inference import embed
    from opmatrix.inference.corpora.joined_shards import join_shards

    possible({"--out": (out, embed.replaceable)}, shards)
    count, width = join_shards(shards, out)
    say(f"{count} texts x {width} numbers in {out}")


@app.command()
@with_groups
def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|DIR...",
            help="embedders, rerankers, language models: checkpoints, or directories that `opmatrix optimize` wrote",
        ),
    ],
    address: AddressOptions,
    limits: ServingOptions,
) -> None:
    """Serve embeddings, ranks and replies over HTTP, by the APIs of OpenAI and Cohere: /v1/embeddings, /v1/rerank,
    /v1/chat/completions and /v1/completions, beside /v1/models, /health and /metrics. Requests are joined into batches;
    numbers are bit for bit those of `embed`. The extra `serve` installs what it needs: starlette and uvicorn."""
    from rewrites.serving.listening import serve_models

    place = address.host, address.port
    serve_models(models, place, limits.limits(), address.processes, lambda words: say(f"serving {words}"))


@app.command()
def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|DIR...", help="checkpoints or saved programs; the others are compared with the first"
        ),
    ],
    pairs: Annotated[
        Path | None, typer.Option(metavar="CSV", help="sentence1, sentence2, score, with or without a header")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a text for language models to predict, in windows of 512 tokens"),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="score only the first tokens of the text")] = None,
    results: options.Results = None,
    truncate: options.Truncate = None,
    own: options.OwnThings = None,
) -> None:
    """Score checkpoints and saved programs. With --pairs: Spearman's correlation, times 100, of the cosines of sentence
    pairs, as `embed` embeds them, or of a reranker's scores, with scores by people. With --text: the perplexity of
    language models, and nats a byte."""
    from rewrites.metrics import evaluate as evaluation
    from rewrites.metrics.pairs import SentencePairs
    from rewrites.workload.phases import Report, silence_stdout

    possible({"--json": (results, writable)}, models, pairs, text, own)
    if tokens is not None and text is None:
        raise InputError(f"--tokens {tokens}: it belongs to a text: give --text FILE")
    if tokens is not None and tokens < 2:
        raise InputError(f"--tokens {tokens}: at least 2, as the first is not predicted")
    if text is not None and pairs is None:
        with silence_stdout():
            told = evaluation.foreseen(models, text, tokens, Report(), own)
        write_results(evaluation.foreseen_json(told, text), results)
        say(evaluation.told_foreseen(told))
        return
    if pairs is None or text is not None:
        raise InputError("evaluate: give one of --pairs CSV and --text FILE")
    sentence_pairs = SentencePairs.read(pairs)
    with silence_stdout():
        scores = evaluation.evaluate_all(models, sentence_pairs, Report(), truncate, own)
    write_results(evaluation.scores_as_json(scores, pairs, sentence_pairs), results)
    say(evaluation.format_scores(scores, sentence_pairs))


@app.command()
def doctor(
    results: options.Results = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="remove files from the cache that this version does not use")
    ] = False,
) -> None:
    """Show the processor and the features that kernels use, cores, libraries, caches; settings that hurt, and fixes."""
    from rewrites.cli.examine import cleaned, examined
    from rewrites.cli.machine.doctor import facts_as_json, format_facts, went

    possible({"--json": (results, writable)})
    gone = cleaned() if clean else []
    facts = examined()
    write_results(facts_as_json(facts), results)
    say("\n\n".join([format_facts(facts), *([went(gone)] if clean else [])]))


@app.command()
def laws(
    own: options.Laws = None,
    kind: Annotated[str | None, typer.Option(help="exact, value, implementation or own; all by default")] = None,
    results: options.Results = None,
) -> None:
    """List every law, in groups: its statement, its guard, its source."""
    from rewrites.cli.list_laws import book, laws_as_json

    possible({"--json": (results, writable)}, own)
    declared = declarations(own)
    say(book(declared, kind))
    write_results(laws_as_json(declared, kind), results)


@app.command()
def discover(
    kinds: options.DiscoveredKinds = "add,mul,compose,product,turn",
    size: Annotated[int, typer.Option(min=1, max=4, help="most operators of a side")] = 2,
    minutes: Annotated[float, typer.Option(min=0, help="no round begins after these")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="seed of all draws: the same seed gives the same laws")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="a new Python file of the laws, for --laws")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on where an interruption left the file of --out")
    ] = False,
    pays: Annotated[
        str | None, typer.Option(metavar="MODEL", help="print what proved laws save in the search of this model")
    ] = None,
    near: Annotated[
        float | None,
        typer.Option(metavar="ERROR", help="propose terms that are so close to functions of --on, no laws"),
    ] = None,
    on: Annotated[str | None, typer.Option(metavar="MODEL", help="the model whose activations --near reads")] = None,
) -> None:
    """Find laws: small terms that agree on numbers, and do not follow from laws found before. Each is printed with its
    statement, its sorts, and its proof or its number of trials."""
    from rewrites.cli.discovering import Discovering, check_out, find_near_terms
    from rewrites.discovery.small_terms import read_kinds

    if near is not None or on is not None:
        find_near_terms(near, on, size, out)
        return
    possible({"--out": (None if resume else out, check_out)})
    command = f"opmatrix discover --kinds {kinds} --size {size} --seed {seed}"
    Discovering(command, out, resume, pays).run(read_kinds(kinds), size, seed, 60 * minutes)


@app.command()
def explain(
    context: typer.Context,
    directory: options.Saved,
    own: options.Laws = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the file of --text that the program was made with")
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the file of --workload that the program was made with")
    ] = None,
    model: options.Origin = None,
    full: Annotated[
        bool, typer.Option("--full", help="also every step of the derivation, and the program before it")
    ] = False,
    results: options.Results = None,
) -> None:
    """Show a saved program before and after, and the time that each law saved, measured by leaving it out. No file is
    opened because a report names it: give your own files again; they are compared by SHA-256."""
    from rewrites.workload.phases import Report, silence_stdout

    possible({"--json": (results, writable)}, directory, own, text, workload, model)
    report = Report(began=context.obj)
    with report.phase("start", brief=True):
        from rewrites.cli.explained_program import find_explanation
    with silence_stdout():
        explanation, figures = find_explanation(
            directory, report, model=model, full=full, laws=own, text=text, texts=workload
        )
    say(explanation)
    write_results(figures, results)


@app.command("report")
def write_report(
    directory: Annotated[Path, typer.Argument(help="a directory that `opmatrix optimize` wrote, or its report.json")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="OUT.html", help="where to write the page; ./DIRECTORY.html by default"),
    ] = None,
) -> None:
    """Write the report of a saved program as one page of HTML, from its report.json alone: no network, no script. The
    page can be printed, and read at any width."""
    from rewrites.report.pages.html_report import page_place, write_html
    from rewrites.report.pages.kept_report import read_kept

    target = out or Path(f"{directory.resolve().name}.html")
    possible({"--out": (target, page_place)}, directory if directory.is_file() else None)
    write_html(read_kept(directory), target)
    say(f"report in {target}")


@app.command()
def profile(
    directory: options.Saved,
    sentences: Annotated[int, typer.Option(min=1, help="sentences of the batch")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="tokens of each sentence, drawn from the vocabulary")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="number of runs; times are medians")] = 15,
    own: options.OwnThings = None,
    results: options.Results = None,
) -> None:
    """Show the time of each kind of step of a saved program, as measured inside runs by native code, beside the
    prediction."""
    from rewrites.cli.machine.profile import profile as told

    possible({"--json": (results, writable)}, directory, own)
    summary, figures = told(directory, sentences, tokens, rounds, own)
    say(summary)
    write_results(figures, results)


@app.command()
def verify(
    directory: options.ProgramOrExport,
    model: options.Origin = None,
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="the file of a perplexity goal")] = None,
    pairs: Annotated[Path | None, typer.Option(metavar="CSV", help="the file of a rank correlation goal")] = None,
    corpus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the lines of such a goal: top10, tau, ndcg10")
    ] = None,
    queries: Annotated[Path | None, typer.Option(metavar="FILE", help="the queries of that goal")] = None,
    judgements: Annotated[Path | None, typer.Option(metavar="TSV", help="the judgements of an ndcg10 goal")] = None,
    program: Annotated[
        Path | None, typer.Option("--program", metavar="DIR", help="the program of an ONNX file (needs onnxruntime)")
    ] = None,
    own: options.OwnThings = None,
    results: options.Results = None,
) -> None:
    """Repeat the checks of a saved program's certificate, as far as directory, MODEL and files allow. An exported file
    is compared with its program. Ends with status 1 if a check fails."""
    from rewrites.metrics.check_table import FAILS, format_checks
    from rewrites.metrics.exported import of_export
    from rewrites.metrics.goals import OVER_CORPUS
    from rewrites.metrics.recheck import of_directory

    possible({"--json": (results, writable)}, directory, model, text, pairs, corpus, queries, judgements, program, own)
    files = {"perplexity": text, "spearman": pairs, "queries": queries, "judgements": judgements}
    files |= dict.fromkeys(OVER_CORPUS, corpus)
    exported = isfile(directory)  # False for a name that is too long, where Path.is_file raises
    checks = of_export(directory, program, own) if exported else of_directory(directory, model, files, own)
    say(format_checks(checks))
    write_results({"checks": [check._asdict() for check in checks]}, results)
    if any(check.verdict == FAILS for check in checks):
        raise typer.Exit(1)


app.command("plan")(plan_model)
app.command("partition")(partition_model)
app.command("launch")(launch_model)


@app.command()
def spectrum(
    model: options.ModelName,
    kind: options.SpectraKind = "weights",
    text: options.SpectraText = None,
    out: Annotated[Path | None, typer.Option(help="where to draw the picture (needs matplotlib)")] = None,
    results: options.Results = None,
) -> None:
    """Print and draw singular values, ranks, energy knees and power laws: of every weight of a MODEL, of the products
    of its heads, of derivatives of its layers, or of the errors that each weight could cause. Columns are explained
    below the table."""
    from opmatrix.display.draw import drawable, spectrum_figure, spectrum_text
    from opmatrix.files.checkpoint import open_model
    from rewrites.report.spectra.operator_spectra import SPECTRA_KINDS, Spectra, check_kind, list_notes, spectrum_record
    from rewrites.workload.phases import Report

    possible({"--out": (out, drawable), "--json": (results, writable)}, model, text)
    check_kind(kind, text)
    with Report().phase(f"spectra of {kind}", brief=True) as progress:
        opened = Spectra(open_model(model), None if text is None else str(text), progress)
        spectra = SPECTRA_KINDS[kind](opened)
    say(spectrum_text(spectra))
    for note in list_notes(opened.notes):
        say(note)
    write_results(
        {
            "of": kind,
            "notes": opened.notes,
            "spectra": [
                {"name": one.name, "kind": one.kind, **dict(one.rows()), **spectrum_record(one)} for one in spectra
            ],
        },
        results,
    )
    if out is not None:
        say(f"drawn in {spectrum_figure(spectra, out)}")


for _ in app.registered_commands:
    if _.callback:
        name = _.name or _.callback.__name__
        _.epilog = show_examples(EXAMPLES.get(name, ()))
        _.rich_help_panel, _.short_help = next((panel, lines[name]) for panel, lines in PANELS.items() if name in lines)
