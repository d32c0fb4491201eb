"""Scores of pairs of texts by the calls of sentence-transformers: its names of parameters, their order and their
defaults, by exact programs and without torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.inference.embed import BATCH_ROWS
from opmatrix.inference.scores.scoring import TORCH_CLASSES, apply_activation
from opmatrix.inference.scores.text_pairs import TextPair, as_scored, check_scoring, score_blocks
from rewrites.encoders.embedding_forms import Converted, converted, loaded_torch
from rewrites.encoders.encoder import Encoder, portions
from rewrites.encoders.refused import PAIR_SCORES, refuse_arguments

ScoreFunction = Callable[[Converted], Converted]


class Ranked(TypedDict, total=False):
    """A document that was ranked: its place among the documents, its score, and its text where that is asked for."""

    corpus_id: int
    score: float
    text: str


class CrossEncoder(Encoder):
    """A model that scores pairs of texts: a name, a directory of a checkpoint, or one that `optimize` saved. At first
    use the exact program is searched for, in seconds, and kept in the user's cache. Raises InputError for a model that
    does not score texts, and for arguments of other devices, of torch's modules and of the hub's code. A language model
    scores pairs by its answer, yes or no; `processor_kwargs` may give it a "chat_template"."""

    task = PAIR_SCORES

    def __init__(
        self,
        model_name_or_path: str | None = None,
        *,
        modules: object = None,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        model_kwargs: Mapping[str, object] | None = None,
        processor_kwargs: Mapping[str, object] | None = None,
        config_kwargs: Mapping[str, object] | None = None,
        model_card_data: object = None,
        backend: str = "torch",
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: ScoreFunction | None = None,
        keep_in_fp32_modules: list[str] | None = None,
    ) -> None:
        others = dict(processor_kwargs or {})
        template = others.pop("chat_template", None)
        if not isinstance(template, str | None):
            raise InputError(f"chat_template {template!r:.60}: give a text")
        unused = dict(
            modules=modules,
            device=device,
            cache_folder=cache_folder,
            trust_remote_code=trust_remote_code,
            token=token,
            model_kwargs=model_kwargs,
            processor_kwargs=others,
            config_kwargs=config_kwargs,
            backend=backend,
            keep_in_fp32_modules=keep_in_fp32_modules,
        )
        where = revision, local_files_only
        super().__init__(model_name_or_path, prompts, default_prompt_name, where, unused, template)
        if self.program.scoring is None:
            raise InputError(
                f"{model_name_or_path}: it embeds texts and has no head that scores them: om.SentenceTransformer"
            )
        self.scoring = check_scoring(self.program)
        if num_labels not in (None, self.num_labels):
            raise InputError(f"num_labels {num_labels}: {model_name_or_path} has {self.num_labels}: leave it out")
        self.activation_fn = activation_fn
        self.max_seq_length = max_length

    @property
    def num_labels(self) -> int:
        """The number of scores of a pair."""
        return len(self.scoring.labels)

    def predict(
        self,
        inputs: TextPair | Sequence[TextPair],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: ScoreFunction | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: object,
    ) -> Converted:
        """Return the scores of pairs, (S) for one label and (S, labels) for several, or those of one pair, behind the
        activation, and a softmax over labels if it is asked for. The longer text of a long pair is truncated first;
        `prompt`, or the prompt of `prompt_name`, comes before the first text. Raises InputError for what is no pair."""
        refuse_arguments("predict", dict(device=device, pool=pool, chunk_size=chunk_size) | kwargs)
        pairs, single = read_pairs(inputs)
        reading, scores = self.reading(prompt_name, prompt), [np.zeros((0, self.num_labels), np.float32)]
        for portion in portions(pairs, batch_size, show_progress_bar, len(pairs)):
            scores += score_blocks(self.program, portion, BATCH_ROWS, reading, self.scoring)
        result = self.activated(np.concatenate(scores), activation_fn)
        if self.num_labels == 1:
            result = result[:, 0]
        elif apply_softmax:
            result = label_shares(result)
        result = result if len(pairs) else np.array([])
        return converted(result, convert_to_numpy, convert_to_tensor, single)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: ScoreFunction | None = None,
        device: str | None = None,
        pool: object = None,
        chunk_size: int | None = None,
    ) -> list[Ranked]:
        """Return the `top_k` documents with the greatest scores behind a query, the greatest first, each as its
        `corpus_id`, its `score` and, with `return_documents`, its `text`; equal ones in their order. Raises InputError
        for a model of several labels."""
        if self.num_labels != 1:
            raise InputError(f"rank: the model has {self.num_labels} labels, and one orders documents: predict(pairs)")
        if isinstance(documents, str):
            raise InputError(f"documents {documents!r:.60}: give a list of texts")
        pairs = [(query, document) for document in documents]
        scores = self.predict(
            pairs,
            prompt_name,
            prompt,
            batch_size,
            show_progress_bar,
            activation_fn,
            device=device,
            pool=pool,
            chunk_size=chunk_size,
        )
        order = sorted(range(len(pairs)), key=lambda at: -scores[at])
        ranked: list[Ranked] = [{"corpus_id": at, "score": float(scores[at])} for at in order[:top_k]]
        if return_documents:
            for entry in ranked:
                entry["text"] = documents[entry["corpus_id"]]
        return ranked

    def activated(self, scores: Floats, activation_fn: ScoreFunction | None) -> Floats:
        """Return scores behind an activation: that of the call, of the model, or of its files. One of torch that the
        table has is computed here; any other callable is given the scores, as a tensor if it is a module of torch."""
        function = activation_fn or self.activation_fn
        if function is None:
            return self.scoring.activate(scores)
        torch, name = loaded_torch(), type(function).__name__
        if torch is None or not isinstance(function, torch.nn.Module):
            return np.asarray(function(scores), np.float32)
        if name in TORCH_CLASSES and type(function) is getattr(torch.nn, name, None):
            return apply_activation(TORCH_CLASSES[name], scores)
        with torch.inference_mode():
            return np.asarray(function(torch.as_tensor(scores)), np.float32)


def read_pairs(inputs: object) -> tuple[list[TextPair], bool]:
    """Return pairs of texts as a list, and true if it was one pair alone. Raises InputError for what is no pair."""
    if isinstance(inputs, str | bytes | Mapping) or not hasattr(inputs, "__iter__"):
        raise InputError(f"inputs {inputs!r:.60}: give a pair of texts, (query, document), or a list of pairs")
    pairs = list(inputs.tolist() if isinstance(inputs, np.ndarray) else inputs)
    single = bool(pairs) and not isinstance(pairs[0], list | tuple)
    read = [as_scored(pair, at) for at, pair in enumerate([pairs] if single else pairs)]
    for at, pair in enumerate(read):
        if isinstance(pair, str):
            raise InputError(f"pair {at} is {pair!r:.60}: give two texts, (query, document)")
    return [(pair[0], pair[1]) for pair in read], single


def label_shares(scores: Floats) -> NDArray[np.float32]:
    """Return the shares of labels: exponentials of the scores of a row, divided by their sum."""
    wide = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
    shares: NDArray[np.float32] = (wide / wide.sum(1, keepdims=True)).astype(np.float32)
    return shares
