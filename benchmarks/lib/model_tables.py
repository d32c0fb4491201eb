"""What benchmarks/models.py says of its rows: tables of each model and number type, what they come to, and a plot."""

from importlib.util import find_spec
from statistics import geometric_mean, median

from lib.workloads import FRESH, TEXTS

from formats.host.host import cpu
from opmatrix.display.tables import table

WITHIN = 0.3  # of 100 times Spearman's correlation: equal quality
RIGHT = 1e-3  # of the hidden states, relative: more is another model in float32
PEERS = "torch", "torch.compile", "onnxruntime", "openvino"
GRIDS = {
    "milliseconds": lambda row: f"{1e3 * row.median_s:.2f}",
    "first result, seconds": lambda row: f"{row.first_s:.2f}",
    "resident, MB": lambda row: f"{row.resident_mb:.0f}",
    "error": lambda row: "" if row.error is None else f"{row.error:.1e}",
}


def show(model, rows, given):
    """Prints the tables of one model."""
    mine = [row for row in rows if row.model == model]
    print(f"\n{model}   {cpu()}, {given.threads} threads, {given.rounds} rounds")
    print("   ".join(dict.fromkeys(f"{row.engine} {row.version}" for row in mine)))
    print("one program of opmatrix for each number type and workload, found by `opmatrix optimize`")
    for number in given.types:
        typed(model, number, mine, [row for row in mine if row.number_type == number], given)
    if missing := [peer for peer in PEERS if peer not in {row.engine for row in mine}]:
        print(f"\nWITHOUT {', '.join(missing)}: no figure counts")


def typed(model, number, every, rows, given):
    """Prints the tables of one number type, and how opmatrix stands to the fastest, leanest, first peer of equal
    quality."""
    names = [name for name in given.workloads if any(row.workload == name for row in rows)]
    engines = list(dict.fromkeys(row.engine for row in rows))
    at = {(row.engine, row.workload): row for row in rows}
    for title, cell in GRIDS.items():
        body = [
            [label(engine, rows, every), *(cell(at[engine, name]) if (engine, name) in at else "" for name in names)]
            for engine in engines
        ]
        print(f"\n{model} {number}, {title}\n" + table(body, ["", *names]))
    for line in stands(number, every, rows, names):
        print(line)


def label(engine, rows, every):
    """An engine with its Spearman, the least of its programs."""
    found = [row.spearman for row in rows if row.engine == engine and row.spearman is not None]
    alike = all(equal(row, every) for row in rows if row.engine == engine)
    if not found:
        return engine if alike else f"{engine} (another model: not counted)"
    return f"{engine} ({min(found):.2f}{'' if alike else ', below: not counted'})"


def equal(row, every):
    """Whether it computes the model, in float32, and its Spearman is within 0.3 of float32's, where both are known."""
    if row.number_type == "float32" and row.error is not None and not row.error <= RIGHT:
        return False
    plain = [other.spearman for other in every if other.number_type == "float32" and other.spearman is not None]
    return row.spearman is None or not plain or row.spearman >= median(plain) - WITHIN


def stands(number, every, rows, names):
    """Lines of what opmatrix takes of what the best peer takes."""
    ours = {row.workload: row for row in rows if row.engine == "opmatrix" and equal(row, every)}
    peers = [row for row in rows if row.engine != "opmatrix" and equal(row, every)]
    shapes = [name for name in names if name not in (*TEXTS, FRESH) and name in ours]
    against = {"fastest peer": peers}
    if number == "int8":
        against["openvino bf16"] = [row for row in every if (row.engine, row.number_type) == ("openvino", "bf16")]
    for whom, others in against.items():
        ratios = {
            name: compared(ours[name], [row for row in others if row.workload == name], paired, seconds)
            for name in shapes
        }
        if said := [f"{name} {ratio:.3f} ({who})" for name, found in ratios.items() if found for ratio, who in [found]]:
            mean = geometric_mean([r[0] for r in ratios.values() if r])
            yield f"seconds / {whom}: {'   '.join(said)}   geometric mean {mean:.3f}"
    for name in [name for name in names if name in TEXTS[1:]] if "file" in ours else ():
        if found := compared(ours["file"], [row for row in peers if row.workload == name], paired, seconds):
            yield f"seconds, file / fastest peer {name}: {found[0]:.3f} ({found[1]})"
    if FRESH in ours and (
        found := compared(ours[FRESH], [row for row in peers if row.workload == FRESH], paired, seconds)
    ):
        yield f"seconds, fresh sizes / fastest peer: {found[0]:.3f} ({found[1]})"
    for what, value in (("resident", lambda row: row.resident_mb), ("first result", lambda row: row.first_s)):
        like = {name: [row for row in peers if row.workload in ([name] if name != "file" else TEXTS)] for name in ours}
        found = {
            name: compared(ours[name], others, lambda a, b, value=value: value(a) / value(b), value)
            for name, others in like.items()
        }
        if said := [f"{name} {ratio:.3f} ({who})" for name, one in found.items() if one for ratio, who in [one]]:
            yield f"{what} / least of peers: {'   '.join(said)}"


def compared(ours, others, ratio, value):
    """What ours takes of the least of the others, and whose that is; None without others."""
    if not others:
        return None
    best = min(others, key=value)
    return ratio(ours, best), best.engine


def paired(a, b):
    """The median of the rounds' ratios, where they ran in the same rounds."""
    return median(x / y for x, y in zip(a.rounds, b.rounds, strict=True))


def seconds(row):
    return row.median_s


def plot(rows, file):
    """Draws seconds by workload, a panel for each model and number type. Says so where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        return print("no plot: matplotlib is not installed: pip install '.[plot]'")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((row.model, row.number_type) for row in rows))
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(9, 2.6 * len(panels)), squeeze=False, layout="constrained")
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        mine = [row for row in rows if (row.model, row.number_type) == panel]
        names = [*dict.fromkeys(row.workload for row in mine)]
        for i, engine in enumerate(engines := [*dict.fromkeys(row.engine for row in rows)]):
            points = [
                (names.index(row.workload) + 0.8 * (i + 0.5) / len(engines) - 0.4, 1e3 * row.median_s)
                for row in mine
                if row.engine == engine
            ]
            axis.bar([at for at, _ in points], [ms for _, ms in points], 0.8 / len(engines), label=engine)
        axis.set(
            yscale="log", ylabel="milliseconds", title=" ".join(panel), xticks=range(len(names)), xticklabels=names
        )
    axes[0, 0].legend(ncols=5, fontsize="small")
    figure.savefig(file)
    pyplot.close(figure)
