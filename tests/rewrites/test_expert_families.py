"""Programs of families with experts: each is the reading, no step is interpreted, and experts that no row asks are not
computed."""

import pytest
from searched import KINDS, structure
from test_expert_models import CASES, RAGGED, made

from opmatrix.models import build
from rewrites.verify import unrounded, verify_exact


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("case", ["mixtral", "qwen2", "pangu", "pr-moe", "gpt-oss"])
def test_its_programs_are_the_reading(case):
    """Imported and with all laws; steps are checked given their operands, whole programs where rows go the ways that
    they went."""
    few = dict(n_layer=2, num_experts=[3]) if case == "pr-moe" else dict(num_hidden_layers=1)
    operator = build(CASES[case][0] | few, made())
    structures = {kind: structure(operator, *KINDS[kind], batch=RAGGED) for kind in ("imported", "exact")}
    programs = {kind: each.program({"model": kind}) for kind, each in structures.items()}
    for kind, (program, emitter) in programs.items():
        verify_exact(program, operator, [RAGGED], programs["imported"][0], unrounded(structures[kind], emitter))
    for program, _ in programs.values():
        kernels = {step.kernel for step in program.steps}
        assert {"experts", "gate"} <= kernels and "interpret" not in kernels
