"""TLS: the address says how the server must prove who it is, and then it must.

Not every Postgres is built with TLS, and none speaks it on a socket of the machine. What is met
here is a proxy that does: it answers as a server would, and carries on in the clear.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from struct import pack

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from midrun import Agent, Midrun
from midrun.errors import StoreUnreachable
from midrun.models import ScriptedModel
from midrun.stores.urls import open_store
from midrun.testing.postgres import Postgres
from tests.unit.stores.postgres.cutting import Cutter

pytestmark = pytest.mark.once

HOST = "127.0.0.1"
SINCE = datetime(2020, 1, 1, tzinfo=UTC)
LIFE = timedelta(days=36500)
REQUEST = pack("!ii", 8, 80877103)
"""What a client says first that wants TLS."""


class Authority:
    """Whom clients believe: it signs for servers. `file` is its certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file = folder / f"{name}.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        its = self._certificate(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file.write_bytes(_pem(its.sign(self._key, hashes.SHA256())))

    def sign(self, folder: Path) -> tuple[Path, Path]:
        """Return a certificate for our own address, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "postgres")])
        alone = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))])
        signed = self._certificate(subject, key.public_key()).add_extension(
            alone, critical=False
        )
        files = folder / "server.crt", folder / "server.key"
        files[0].write_bytes(_pem(signed.sign(self._key, hashes.SHA256())))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        begun = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        begun = begun.public_key(key).serial_number(x509.random_serial_number())
        return begun.not_valid_before(SINCE).not_valid_after(SINCE + LIFE)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


class Private:
    """A server that is spoken to in private, or not at all."""

    def __init__(self, cutter: Cutter, context: ssl.SSLContext) -> None:
        self._cutter = cutter
        self._context = context

    async def carry(self, asks: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """Carry one connection on, if it can be made private."""
        assert await asks.readexactly(len(REQUEST)) == REQUEST
        answers.write(b"S")
        try:
            await answers.start_tls(self._context)
        except (ssl.SSLError, OSError):
            answers.close()  # they do not believe us
            return
        await self._cutter.carry(asks, answers)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Give the authority that has signed for the server."""
    return Authority(tmp_path, "authority")


@pytest.fixture
async def port(postgres: Postgres, tmp_path: Path, authority: Authority) -> AsyncIterator[int]:
    """Give where the server can be met, in private."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign(tmp_path))
    cutter = Cutter(tmp_path, postgres.folder)
    private = Private(cutter, context)
    async with await asyncio.start_server(private.carry, HOST, 0) as listening:
        yield listening.sockets[0].getsockname()[1]
        await cutter.close()


async def test_runs_are_driven_over_connections_that_are_private_and_proven(
    postgres: Postgres, port: int, authority: Authority
) -> None:
    """Every connection of the process, whatever it is for."""
    url = f"{postgres.url(host=HOST, port=port)}&sslmode=verify-full"
    agent = Agent("actor", model=ScriptedModel(["Done."]), tools=[])
    async with Midrun(f"{url}&sslrootcert={authority.file}", agents=[agent]) as midrun:
        run = await midrun.start("actor", "Go.")
        assert (await run.until("completed")).output == "Done."


async def test_a_server_that_cannot_prove_who_it_is_is_refused_at_once(
    postgres: Postgres, port: int, tmp_path: Path
) -> None:
    """Waiting would not make it another."""
    stranger = Authority(tmp_path, "stranger")
    url = f"{postgres.url('public', host=HOST, port=port)}&sslmode=verify-full"
    with pytest.raises(StoreUnreachable, match="certificate verify failed"):
        await open_store(f"{url}&sslrootcert={stranger.file}")


async def test_a_name_that_is_not_the_servers_is_refused_at_once(
    postgres: Postgres, port: int, authority: Authority
) -> None:
    """It may be who it says, but it is not whom we asked for."""
    url = f"{postgres.url('public', host='db.internal', port=port)}&hostaddr={HOST}"
    with pytest.raises(StoreUnreachable, match="does not match host name"):
        await open_store(f"{url}&sslmode=verify-full&sslrootcert={authority.file}")


async def test_a_server_without_tls_is_refused_where_tls_is_required(
    postgres: Postgres, tmp_path: Path
) -> None:
    """Never in the clear, because somebody in between said that it cannot be done."""
    plain = Cutter(tmp_path, postgres.folder)
    async with await asyncio.start_server(plain.carry, HOST, 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnreachable, match="does not support SSL"):
            await open_store(f"{postgres.url('public', host=HOST, port=port)}&sslmode=require")
        await plain.close()
