"""Functions of Python written as LLVM's language."""
