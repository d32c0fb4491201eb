"""What benchmarks share: options and figures (command), workloads, engines and peers in their own processes, races."""
