"""The snippets of docs/torch.md, in their order, as a reader runs them."""

import re
from pathlib import Path

import pytest

from ..support.capsules import framework

torch = framework("torch")
PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:`torch.jit.(script|script_method|trace)` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
def test_snippets():
    names = {}
    for snippet in SNIPPETS:
        exec(compile(snippet, str(PAGE), "exec"), names)
    assert len(SNIPPETS) > 3
