"""Laws that are found by enumeration, judged on numbers, proved where axioms suffice, and written as a file of laws."""
