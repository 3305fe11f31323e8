"""What an error says."""

from __future__ import annotations

import pytest
from moryflow_sdk import MoryflowError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MoryflowError("it is wrong"), "it is wrong"),
        (MoryflowError("it is wrong.", where="a.md:3", next_step="mend it"), "a.md:3: it is wrong. Next: mend it"),
        (MoryflowError("no x; did you mean 'y'?", next_step="type y"), "no x; did you mean 'y'? Next: type y"),
    ],
)
def test_an_error_says_where_what_and_what_to_do_in_whole_sentences(error: MoryflowError, said: str) -> None:
    assert str(error) == said
