"""The keys of a configuration that say which way a coordinator is reached; the same for participants and analysts."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StrictStr, model_validator

from veilsum_node.addresses import split_host_port
from veilsum_node.fields import Frozen
from veilsum_node.transport.route import ENVIRONMENT, Route, plan_route


def _proxy(value: str) -> str:
    try:
        if value != ENVIRONMENT:
            split_host_port(value)
    except ValueError:
        raise ValueError('must be host:port without a scheme, for example proxy.example:3128, or "environment"') from None
    return value


class RouteSettings(Frozen):
    """How a coordinator is reached.

    Attributes:
        proxy: host:port of an HTTP proxy that tunnels by CONNECT; ``environment`` lets the variables https_proxy and no_proxy
            decide. Without it the way is straight, whatever the environment says.
        proxy_user, proxy_password_file: for a proxy that asks (basic authentication); the file has mode 0600.
        ca_bundle: PEM of further authorities that may have issued the coordinator's TLS certificate; its federation
            identity is proven in any case.
    """

    proxy: Annotated[StrictStr, AfterValidator(_proxy)] | None = None
    proxy_user: StrictStr | None = Field(default=None, pattern=r"^[^:\x00-\x1f\x7f]{1,256}$")
    proxy_password_file: Path | None = None
    ca_bundle: Path | None = None

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        named = self.proxy not in (None, ENVIRONMENT)
        if (self.proxy_user is None) != (self.proxy_password_file is None) or (self.proxy_user is not None and not named):
            raise ValueError(
                "proxy_user and proxy_password_file must be set together, and only for a proxy named by host:port"
            )
        return self

    def route_to(self, address: str) -> Route:
        """The way to a coordinator; reads the files that it needs.

        Raises:
            ConfigurationError: one of them, or the environment's proxy, is wrong.
        """
        return plan_route(
            address, proxy=self.proxy, user=self.proxy_user, password_file=self.proxy_password_file, ca_bundle=self.ca_bundle
        )
