"""Programs of families with experts: each is the reading, and experts that no row asks are not computed."""
import pytest
from searched import KINDS, structure
from test_expert_models import CASES, RAGGED, made

from opmatrix.models import build
from rewrites.verify import unrounded, verify_exact


@pytest.mark.parametrize("case", ["mixtral", "qwen2", "pangu"])
def test_its_programs_are_the_reading(case):
    """Imported and with all laws; steps are checked given their operands, whole programs where rows go the ways that
    they went."""
    operator = build(CASES[case][0] | dict(num_hidden_layers=1), made())
    structures = {kind: structure(operator, *KINDS[kind], batch=RAGGED) for kind in ("imported", "exact")}
    programs = {kind: each.program({"model": kind}) for kind, each in structures.items()}
    for kind, (program, emitter) in programs.items():
        verify_exact(program, operator, [RAGGED], programs["imported"][0], unrounded(structures[kind], emitter))
    assert {"experts", "gate"} <= {step.kernel for step in programs["exact"][0].steps}
