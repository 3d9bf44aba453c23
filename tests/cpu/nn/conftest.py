"""What tests of layers share."""

import pytest
import torch

from tests.gpu.nn_references import poisoned


@pytest.fixture
def fresh_inputs():
    """Draw other random numbers in every test, and poison the memory that torch does not initialise."""
    print("seed", torch.seed())  # which pytest shows where a test fails
    with poisoned():
        yield
