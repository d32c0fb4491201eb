"""Laws that proofs use and the search does not."""
