"""Which coordinator an analyst or operator means, and as whom: options and environment first, then ``analyst.toml``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from veilsum_node.addresses import address_to_dial
from veilsum_node.config import load_toml, located
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_node.fields import Frozen, Hex32
from veilsum_node.transport.route import Route
from veilsum_node.transport.route_settings import RouteSettings

if TYPE_CHECKING:
    from veilsum_node.identity import Credentials

SETTINGS = Path("analyst.toml")


class LoginNeededError(ConfigurationError):
    """The certificate of the last login has ended, or there was none yet."""


class LoginSettings(Frozen):
    """The table ``[login]``, of who logs in with an identity provider instead of keeping a certificate.

    Attributes:
        url: of the authority's service, https, or http on loopback.
        ca_bundle: PEM of further authorities that may have issued its or the provider's TLS certificate.
        federation: SHA-256 of the authority's certificate; another one is refused. Without it the service is believed.
    """

    url: str
    ca_bundle: Path | None = None
    federation: Hex32 | None = None


class AnalystConfig(RouteSettings):
    """An analyst's or operator's settings, with the keys of :class:`RouteSettings` beside these.

    Attributes:
        coordinator: host:port of the coordinator.
        identity: directory of key, certificate and authority.
        login: where ``veilsum login`` gets them.
    """

    coordinator: Annotated[str, AfterValidator(address_to_dial)] | None = None
    identity: Path = Path("identity")
    login: LoginSettings | None = None


@dataclass(frozen=True)
class Access:
    """A coordinator's address, the way to it, the caller's identity directory, and whether a login fills it."""

    address: str
    identity: Path
    way: RouteSettings = field(default_factory=RouteSettings)
    by_login: bool = False

    def credentials(self, at: int) -> "Credentials":
        """The caller's credentials, valid at ``at``, Unix seconds.

        Raises:
            LoginNeededError: the caller logs in, and has not yet or too long ago.
            ConfigurationError: as of :func:`load_credentials`.
        """
        from veilsum_node.identity import CertificateExpired, load_credentials
        from veilsum_node.identity.tls import CERTIFICATE_FILE

        if self.by_login and not (self.identity / CERTIFICATE_FILE).exists():
            raise LoginNeededError(f"Nobody has logged in yet: {self.identity} holds no certificate.", "Run `veilsum login`.")
        try:
            return load_credentials(self.identity, at)
        except ConfigurationError as error:
            if self.by_login and isinstance(error.__cause__, CertificateExpired):
                raise LoginNeededError(error.message, "Log in again: `veilsum login`.") from error
            raise

    @property
    def route(self) -> Route:
        """The way to the coordinator.

        Raises:
            ConfigurationError: a file that it needs is wrong.
        """
        return self.way.route_to(self.address)


def load_analyst(settings: Path) -> AnalystConfig:
    """Load the settings file; its paths are taken from its directory.

    Raises:
        ConfigurationError: it is missing or wrong.
    """
    return located(load_toml(settings, AnalystConfig), settings)


def resolve_access(address: str | None, identity: Path | None, settings: Path = SETTINGS) -> Access:
    """Fill in what is not given from the settings file, if there is one; its paths are taken from its directory.

    Proxy and CA bundle are always those of the file: they belong to the place, not to one coordinator.

    Raises:
        ConfigurationError: the settings file is wrong.
        Misuse: address or identity is named nowhere.
    """
    way: RouteSettings = RouteSettings()
    by_login = False
    if settings.is_file():
        way = config = load_analyst(settings)
        address = address or config.coordinator
        by_login = identity is None and config.login is not None
        identity = identity or config.identity
    if not address:
        raise Misuse("No coordinator is named.", f"Give --coordinator, set VEILSUM_COORDINATOR, or name it in {SETTINGS}.")
    if identity is None:
        raise Misuse("No identity is named.", f"Give --identity, set VEILSUM_IDENTITY, or name it in {SETTINGS}.")
    return Access(address, identity, way, by_login)


def resolve_identity(identity: Path | None) -> Path:
    """The caller's identity directory: as given, or that of the settings file.

    Raises:
        ConfigurationError: the settings file is wrong.
        Misuse: it is named nowhere.
    """
    if identity is not None:
        return identity
    if not SETTINGS.is_file():
        raise Misuse("No authority is named.", f"Give --authority or --identity, or name your identity in {SETTINGS}.")
    return load_analyst(SETTINGS).identity


def resolve_login(settings: Path = SETTINGS) -> tuple[LoginSettings, Path]:
    """Where to log in, and the identity directory that it fills; paths are taken from the file's directory.

    Raises:
        ConfigurationError: the settings file is missing or wrong.
        Misuse: it has no table ``[login]``.
    """
    config = load_analyst(settings)
    if config.login is None:
        raise Misuse(f"{settings} says nowhere to log in.", "Give it a table [login] with the url of the authority's service.")
    return config.login, config.identity
