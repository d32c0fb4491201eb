"""Laws of heads in groups and of products in blocks: each holds, and falls without its guard."""

import numpy as np
import pytest

from rewrites.laws.proving.groups import AS_MANY_HEADS, GROUP_LAWS


@pytest.mark.parametrize("each", GROUP_LAWS, ids=lambda law: law.name)
def test_declared(each):
    each.check(np.random.default_rng(0))


def test_heads_that_do_not_meet_are_guarded():
    assert {each.name for each in GROUP_LAWS if each.when == AS_MANY_HEADS} == {
        "add_heads",
        "multiply_heads",
        "product_heads",
        "row_heads",
        "scan_heads",
    }
