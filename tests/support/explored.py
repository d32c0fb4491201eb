"""A graph follows from the text of its laws and of its part: tests of one process make each once. What is about making
it calls rewrites.egraph.egraph.saturate, or asks for the fixture `graphs_anew`. Laws alone follow from themselves, and
the graphs of a model from it: whole runs and checks of certificates verify each once in a process, while tests of that
call it by its own name. A cheapest program follows from its problem, whatever the numbers of its weights."""

from opmatrix.algebra.data import Data
from rewrites.egraph.egraph import prelude
from rewrites.egraph.layers import Explorer
from rewrites.extraction import Infeasible
from rewrites.metrics import recheck
from rewrites.search import search
from rewrites.verify import levels
from rewrites.verify.forked_task import ForkedTask
from rewrites.verify.levels import verify_graphs, verify_law, verify_laws

anew, extract = Explorer.graph, search.extract

VERIFIED = {}  # by laws, seed and draws
ALONE = set()  # laws that were verified alone, with seed and draws
GRAPHS = set()  # the signatures of templates whose graphs were verified, with the laws and the seed


def verify_once(laws, seed=0, draws=2, announce=lambda line: None):
    """As verify_laws; what fails fails each time."""
    if (key := (tuple(laws), seed, draws)) not in VERIFIED:
        VERIFIED[key] = verify_laws(laws, seed, draws, announce)
    return dict(VERIFIED[key])


def verify_law_once(law, seed, draws, announce):
    """As verify_law; what fails fails each time."""
    if (key := (law, seed, draws)) not in ALONE:
        verify_law(law, seed, draws, announce)
        ALONE.add(key)


class Unforked(ForkedTask):
    """The work of a run in its own process, which remembers what it has verified."""

    def __enter__(self):
        return self


def signature(template):
    """All of a template but the numbers in its arrays, in whose place a check of its graph draws others."""
    shapes = ((name, value.shape if isinstance(value, Data) else value) for name, value in template.values.items())
    return template.text, template.entries, frozenset((name, type(value), value) for name, value in shapes)


def verify_graphs_once(templates, laws, seed=0, announce=lambda line: None):
    """As verify_graphs; what fails fails each time."""
    distinct = {template.text: template for template in templates}
    keys = {(signature(template), tuple(laws), seed): template for template in distinct.values()}
    verify_graphs([keys[key] for key in keys if key not in GRAPHS], laws, seed, announce)
    GRAPHS.update(keys.keys())
    return {"graphs": len(distinct), "seed": seed}


def remembering(most=64):
    """`extract`, which solves equal problems once, of so many that were last met anew. What was not solved to the end
    is not kept."""
    solved = {}

    def extract_once(problem, *, families, **options):
        key = (*problem.nodes, *problem.roots, *options.items())
        if key not in solved:
            try:
                found = extract(problem, families=families, **options)
            except Infeasible as error:
                found = error
            if isinstance(found, Infeasible) or found.optimal:
                solved[key] = found
            if len(solved) > most:
                del solved[next(iter(solved))]
        else:
            found = solved[key]
        if isinstance(found, Infeasible):
            raise found
        return found

    return extract_once


def sharing(patch):
    """Explorers begin with the graphs that others of the same laws and facts have made, runs and checks of certificates
    with the same laws verified and with the programs of equal problems."""
    made = {}
    patch.setattr("rewrites.run.ForkedTask", Unforked)
    patch.setattr(levels, "verify_law", verify_law_once)
    patch.setattr("rewrites.verify.verify_laws", verify_once)
    patch.setattr("rewrites.verify.verify_graphs", verify_graphs_once)
    patch.setattr(recheck, "verify_laws", verify_once)
    patch.setattr(recheck, "verify_graphs", verify_graphs_once)
    patch.setattr(search, "extract", remembering())

    def graph(explorer, part):
        own = vars(explorer)
        if "rules" not in own:
            own["rules"] = prelude(explorer.laws)
        key = own["rules"], explorer.budget, tuple(explorer.schedule), part.template.text, part.template.entries
        if key in made:
            explorer.graphs.setdefault(part.template.text, made[key])
        made[key] = anew(explorer, part)
        return made[key]

    patch.setattr(Explorer, "graph", graph)
