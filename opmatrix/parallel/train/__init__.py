"""Steps of training that ranks run: forward and backward of each stage, micro-batch by micro-batch, gradients summed as
formulas say, the optimiser's numbers where the plan stores them."""
