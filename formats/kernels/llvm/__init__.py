"""Python functions translated to LLVM IR."""
