"""OLMo 2 (OLMo Team 2025, section 3.2): a LLaMA whose norms stand behind attention and behind units, not before them.
Queries and keys are normed across all heads."""

from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Settings, declares, flag, real
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, QKV, DecoderForm, decoder


@declares(LAYOUT, **LLAMA_KEYS | dict(rms_norm_eps=real(1e-20, 1, 1e-5)), attention_bias=flag(False))
def olmo2(config: Settings, at: ArraySource) -> Operator:
    """A LLaMA with its norms behind, and query-key norms of all columns."""
    form = DecoderForm(behind=True, normed_whole=True)
    return decoder(config, at, (*QKV, "o") * config["attention_bias"], form=form)
