"""What may be approximated where: places that read a weight, the error of each method there, and its cache."""
