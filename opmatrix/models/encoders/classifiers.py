"""The heads by which encoders score texts: a row of the text through a product with an activation, then a product that
scores labels (Devlin et al. 2018, section 4.1)."""

from opmatrix.algebra.operators import ACTIVATIONS, affine, pick
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Classifier, Settings


def first_row(dense: str, act: str, scores: str) -> Classifier:
    """Return the builder of a head that reads the row of the first token: the name of its product with an activation,
    that activation, or nothing for `pooler_hidden_act`, and the name of its product that scores labels."""

    def build(config: Settings, at: ArraySource, labels: int) -> Operator:
        """Build the head for this number of labels; files store W as (outputs, inputs)."""
        n = config["hidden_size"]
        inner, last = (
            affine(at(f"{name}.weight", p, n).T, at(f"{name}.bias", p)) for name, p in ((dense, n), (scores, labels))
        )
        return pick("first") @ inner @ ACTIVATIONS[act or config["pooler_hidden_act"]] @ last

    return build


BY_POOLER = first_row("pooler.dense", "tanh", "classifier")
ON_TOP = first_row("classifier.dense", "tanh", "classifier.out_proj")
