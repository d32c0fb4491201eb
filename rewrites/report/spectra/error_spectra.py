"""The error spectrum of each place where a program multiplies rows by a weight W (n, p): singular values of R W Qᵀ,
with RᵀR = G = Σ xᵀx over the rows x that come in and QᵀQ = S = Σ gᵀg over the cotangents g of the rows that go out.
Were x and g independent, the tail of their squares would be the squared relative change of the model's output by the
best rank r: small where few directions of the rows, or of the output, matter."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from formats.core.errors import InputError
from formats.core.stage import NoPullback
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.cotangents import PulledStep, product_cotangents
from opmatrix.runtime.declarations.pullbacks import dense_numbers
from opmatrix.runtime.program import Program
from opmatrix.spectra import Spectrum
from opmatrix.spectra.gram import root, strengths
from opmatrix.spectra.measures import RealArray
from rewrites.approximate.predicted_errors import OutputProbe, last_choosing, sites_with_cotangents
from rewrites.approximate.sites import WeightSite
from rewrites.report.spectra.expert_products import Product, expert_products
from rewrites.report.weight_spectra import called

OF_EXPERTS = "up", "down"  # operands of a step of experts
PRECISION = 1e-7  # of values that were squared, relative to the largest


@dataclass
class ErrorSpectra:
    """The error spectra of a program's weights on a text. `notes`: a line for each weight that is left out, and for
    each whose spectrum says less than it seems to."""

    program: Program
    sites: Sequence[WeightSite]
    batch: Batch
    notes: list[str] = field(default_factory=list)

    def spectra(self, progress: Callable[[int, int], None] = lambda *_: None) -> list[Spectrum]:
        """Return the spectra, in the order of the model. Raises InputError where the output is zero, and where no
        weight has a spectrum."""
        probe, multiplied = OutputProbe(self.program, self.batch), self.multiplied()
        size = float(np.linalg.norm(probe.output.astype(np.float64)))
        if size == 0 or not np.isfinite(size):
            raise InputError(f"--of error: the output on this text has norm {size}: no change is relative to it")
        spectra, left = dict[str, list[Spectrum]](), dict(multiplied)
        try:
            for site, readers in sites_with_cotangents(probe, multiplied):
                progress(len(multiplied) - len(left), len(multiplied))
                spectra[site.name] = [*self.of_site(site, readers, size)]
                del left[site.name]
            self.notes += [f"{name_site(site)}: the output does not depend on it: left out" for site in left.values()]
        except NoPullback as error:
            self.notes.append(f"{error}: the {len(left)} weights before it are left out")
        if not any(spectra.values()):
            raise InputError("--of error: no weight has a spectrum: " + "; ".join(self.notes[:3]))
        self.notes += [*self.common_notes(multiplied.values())]
        return [one for name in multiplied for one in spectra.get(name, ())]

    def multiplied(self) -> dict[str, WeightSite]:
        """Return the weights that rows are multiplied by, each once; tables that rows are gathered from are left
        out."""
        return {site.name: site for site in self.sites if site.x is not None and list_names(site)}

    def common_notes(self, sites: Iterable[WeightSite]) -> Iterator[str]:
        """Yield lines about all spectra."""
        most = max(len(site.numbers()) for site in sites)
        if self.batch.rows < most:
            yield (
                f"{self.batch.rows} rows of text for weights of up to {most} rows: further values of these are 0 here: "
                "give more lines, --text FILE"
            )
        if (chooser := last_choosing(self.program)) >= 0:
            step = self.program.steps[chooser]
            yield f"step {step.output} = {step.kernel} chooses entries, which cotangents keep as they are on this text"

    def of_site(self, site: WeightSite, readers: Sequence[PulledStep], size: float) -> Iterator[Spectrum]:
        """Yield the spectrum of a weight; of a stack one for each matrix that some row is multiplied by."""
        gathered = dict[str, list[Product]]()
        for pulled in readers:
            for product in self.products(site, pulled):
                gathered.setdefault(product.suffix, []).append(product)
        for suffix, products in gathered.items():
            name = name_site(site) + suffix
            x = np.concatenate([product.x for product in products]).astype(np.float64)
            g = np.concatenate([product.cotangents for product in products], 1).astype(np.float64)
            values = self.values(name, products[0].weight, x, g)
            if values is not None:
                shape = products[0].weight.shape
                yield Spectrum(values / (size * np.sqrt(len(x))), shape, name, "error", PRECISION)

    def products(self, site: WeightSite, pulled: PulledStep) -> Iterator[Product]:
        """Yield the products of rows by a weight in a step that reads it."""
        kernel, operands = pulled.call.kernel, self.program.steps[pulled.step].operands
        operand = next(name for name, constant in operands.items() if site.reads(name, constant))
        if {*OF_EXPERTS} <= {*kernel.operands}:
            yield from expert_products(pulled, operand)
        elif (g := product_cotangents(pulled, self.batch)) is not None:
            x, weight = np.asarray(pulled.arguments["x"]), getattr(pulled.call.bound, operand)
            yield Product("", x, dense_numbers(weight), g)
        else:
            self.notes.append(f"{name_site(site)}: step {pulled.step} = {kernel} is no product of rows: left out")

    def values(self, name: str, weight: RealArray, x: RealArray, g: RealArray) -> RealArray | None:
        """Return the singular values of R W Qᵀ, falling, of rows x (rows, n) and cotangents g (K, rows, p); None, with
        a note, where all are 0."""
        if not g.any():
            self.notes.append(f"{name}: no change of it reaches the output on this text: left out")
            return None
        if not x.any():
            self.notes.append(f"{name}: its rows are zero on this text: left out")
            return None
        if len(x) > 1 and (x == x[0]).all():
            self.notes.append(
                f"{name}: its rows are all the same on this text: one direction, so rank 1 is enough here"
            )
        elif (unused := int((~x.any(0)).sum())) > 0:
            self.notes.append(f"{name}: {unused} of {x.shape[1]} columns of its rows are 0 on this text: singular")
        outer = gram_factor(g.reshape(-1, g.shape[-1]) / np.sqrt(len(g)))
        core = gram_factor(x) @ weight @ outer.T
        values = strengths(core, np.ones(len(core)))
        if values[0] == 0:
            self.notes.append(f"{name}: all of its values are 0 on this text: left out")
            return None
        return values


def gram_factor(rows: RealArray) -> RealArray:
    """Return R (k, n) with RᵀR = XᵀX: the rows X themselves where they are few, else a root of their Gram."""
    return rows if len(rows) <= rows.shape[1] else root(rows.T @ rows)


def list_names(site: WeightSite) -> list[str]:
    """Return the names of the stored arrays that a weight is made of."""
    return [called(data) for data in site.lowering.arrays(site.stored.weight)]


def name_site(site: WeightSite) -> str:
    """Return the name of a weight in its checkpoint; for a joined one the names of its parts."""
    return " + ".join(list_names(site))
