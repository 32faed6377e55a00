"""The C++ operations under AddressSanitizer and UndefinedBehaviorSanitizer: no access outside exact buffers, results as
plain definitions give them, and nothing written by a call that is refused."""

import pytest

from tests.fuzz import build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def program():
    reason = build.missing_tools()
    if reason:
        pytest.skip(reason)
    return build.build()


def test_corpus_and_inputs_mutated_from_it(program):
    assert build.run(program, runs=300) == 0


def test_corpus_has_every_operation_and_stays_small():
    inputs = [path.read_bytes() for path in build.CORPUS.iterdir()]
    assert {data[0] % 8 for data in inputs} == set(range(8))
    assert len(inputs) <= 30 and max(map(len, inputs)) <= 400
