"""The ground floor: sizes, storage formats, kernels, machines. It knows no monoid and no operator."""
