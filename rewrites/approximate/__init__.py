"""What may be approximated where: sites that read a weight, trials, errors of methods and blocks, their cache."""
