"""Meshes that a model does not fit, in one line each that names what is wrong, its value, and what would do; and a model
of 61 layers of the widths of DeepSeek-V3, of which formulas are small."""
import tracemalloc

import pytest
import sympy
from partitioned import ANY, BERT, LLAMA, VOCABULARY, made, planned

from formats.core.errors import InputError
from opmatrix.algebra.operators import cumulative, symbol, weight
from opmatrix.models import promised
from opmatrix.partitions.plan import partition
from opmatrix.split.cuts import even
from opmatrix.split.mesh import STRATEGIES, Mesh
from opmatrix.split.moving import BatchSizes
