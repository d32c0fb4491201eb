"""A graph follows from the text of its laws and of its part: tests of one process make each once. What is about making
it, calls rewrites.compiler.egraph.saturate, or asks for the fixture `graphs_anew`."""
from rewrites.compiler.egraph import prelude
from rewrites.compiler.layers import Explorer

anew = Explorer.graph


def sharing(patch):
    """Explorers take the graphs that others of the same laws and facts have made."""
    made = {}

    def graph(explorer, part):
        own = explorer.graphs
        if (text := part.template.text) not in own:
            laws = vars(explorer).setdefault("text", prelude(explorer.laws))
            key = laws, explorer.budget, text, part.template.entries
            own[text] = made[key] if key in made else made.setdefault(key, anew(explorer, part))
        return own[text]
    patch.setattr(Explorer, "graph", graph)
