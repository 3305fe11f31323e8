"""A cluster for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_rig import ClusterRig


@pytest.fixture
def make_cluster(postgres, tmp_path: Path) -> Iterator[Callable[..., ClusterRig]]:
    """Make a cluster with a schema of its own."""
    made: list[ClusterRig] = []

    def make(**options: Any) -> ClusterRig:
        made.append(ClusterRig(tmp_path / "home", tmp_path / "vault", postgres.schema_url(str(tmp_path)), **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def cluster(make_cluster: Callable[..., ClusterRig]) -> ClusterRig:
    """A cluster."""
    return make_cluster()
