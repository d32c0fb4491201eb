"""A graph follows from the text of its laws and of its part: tests of one process make each once. What is about making
it calls rewrites.egraph.egraph.saturate, or asks for the fixture `graphs_anew`. Laws alone follow from themselves:
whole runs of one process verify the same ones once, while tests of that call it by its own name. A cheapest program
follows from its problem, whatever the numbers of its weights."""

from rewrites.egraph.egraph import prelude
from rewrites.egraph.layers import Explorer
from rewrites.extraction import Infeasible
from rewrites.search import search
from rewrites.verify.levels import verify_laws

anew, extract = Explorer.graph, search.extract

VERIFIED = {}  # by laws, seed and draws


def verify_once(laws, seed=0, draws=2, announce=lambda line: None):
    """As verify_laws; what fails fails each time."""
    if (key := (tuple(laws), seed, draws)) not in VERIFIED:
        VERIFIED[key] = verify_laws(laws, seed, draws, announce)
    return dict(VERIFIED[key])


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
    """Explorers begin with the graphs that others of the same laws and facts have made, runs with the same laws
    verified and with the programs of equal problems."""
    made = {}
    patch.setattr("rewrites.verify.verify_laws", verify_once)
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
