"""What is installed names itself, and the extras that it has."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError

import pytest

from veilsum_node.errors import ConfigurationError
from veilsum_node.process import software
from veilsum_node.process.imports import networks_may_be_missing
from veilsum_node.process.software import DISTRIBUTIONS, install_extra, installed_distribution, installed_version


@pytest.fixture(autouse=True)
def looked_for_anew() -> Iterator[None]:
    installed_distribution.cache_clear()
    yield
    installed_distribution.cache_clear()


@pytest.mark.parametrize("installed", DISTRIBUTIONS)
def test_an_extra_is_asked_of_the_distribution_that_is_installed(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    def version(name: str) -> str:
        if name != installed:
            raise PackageNotFoundError(name)
        return "1.2"

    monkeypatch.setattr(software, "version", version)
    assert installed_version() == "1.2"
    assert install_extra("onnx") == f"pip install '{installed}[onnx]'"


def test_nothing_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(software, "version", version)
    with pytest.raises(PackageNotFoundError, match="veilsum"):
        installed_version()


@pytest.mark.parametrize("name", ["torch", "ot", "tenseal"])
def test_who_lacks_a_package_for_networks_is_told_how_to_get_it(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught, networks_may_be_missing():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    assert "this installation lacks" in caught.value.message
    assert "[networks]'" in caught.value.advice


def test_any_other_missing_module_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"), networks_may_be_missing():
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")
