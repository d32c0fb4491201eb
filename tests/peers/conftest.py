"""What the tests beside other libraries start from."""

import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def peers_single_threaded():
    """Models here are small, and other processes test at the same time: threads of a peer would spin for cores that
    these use."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
