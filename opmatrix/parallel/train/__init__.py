"""Steps of training that ranks run: forward and backward of each stage, micro-batch by micro-batch, gradients summed as
the formulas declare, and the optimiser's state where the plan stores it."""
