"""TLS: the store checks the certificate of the server as its URL demands.

Not every Postgres is built with TLS, and none uses it on a Unix socket. These tests run a proxy
that speaks TLS with the client and plain text with the server.
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
from tests.unit.stores.postgres.faulty_proxy import FaultyProxy

pytestmark = pytest.mark.once

HOST = "127.0.0.1"
VALID_FROM = datetime(2020, 1, 1, tzinfo=UTC)
VALID_FOR = timedelta(days=36500)
SSL_REQUEST = pack("!ii", 8, 80877103)
"""The first message of a client that requires TLS."""


class CertificateAuthority:
    """Signs the certificates of servers. `file` has its own certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file = folder / f"{name}.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self.start_certificate(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file.write_bytes(encode_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue_certificate(self, folder: Path) -> tuple[Path, Path]:
        """Return the files of a certificate for HOST and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "postgres")])
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))])
        certificate = self.start_certificate(subject, key.public_key()).add_extension(
            address, critical=False
        )
        files = folder / "server.crt", folder / "server.key"
        files[0].write_bytes(encode_pem(certificate.sign(self._key, hashes.SHA256())))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def start_certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key).serial_number(x509.random_serial_number())
        return builder.not_valid_before(VALID_FROM).not_valid_after(VALID_FROM + VALID_FOR)


def encode_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


class TlsProxy:
    """A proxy that accepts TLS connections and forwards them to the server."""

    def __init__(self, cutter: FaultyProxy, context: ssl.SSLContext) -> None:
        self._cutter = cutter
        self._context = context

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection if its TLS handshake succeeds."""
        assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
        writer.write(b"S")
        try:
            await writer.start_tls(self._context)
        except (ssl.SSLError, OSError):
            writer.close()  # the client refuses the certificate
            return
        await self._cutter.forward(reader, writer)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    """Return the authority that signs the server's certificate."""
    return CertificateAuthority(tmp_path, "authority")


@pytest.fixture
async def port(
    postgres: Postgres, tmp_path: Path, authority: CertificateAuthority
) -> AsyncIterator[int]:
    """Run the TLS proxy and return its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue_certificate(tmp_path))
    cutter = FaultyProxy(tmp_path, postgres.folder)
    proxy = TlsProxy(cutter, context)
    async with await asyncio.start_server(proxy.carry, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]
        await cutter.close()


async def test_a_run_completes_over_verified_tls_connections(
    postgres: Postgres, port: int, authority: CertificateAuthority
) -> None:
    """All connections of the process use TLS."""
    url = f"{postgres.url(host=HOST, port=port)}&sslmode=verify-full"
    agent = Agent("actor", model=ScriptedModel(["Done."]), tools=[])
    async with Midrun(f"{url}&sslrootcert={authority.file}", agents=[agent]) as midrun:
        run = await midrun.start("actor", "Go.")
        assert (await run.until("completed")).output == "Done."


async def test_a_certificate_of_an_unknown_authority_is_refused_at_once(
    postgres: Postgres, port: int, tmp_path: Path
) -> None:
    """A retry would not help."""
    unknown_authority = CertificateAuthority(tmp_path, "stranger")
    url = f"{postgres.url('public', host=HOST, port=port)}&sslmode=verify-full"
    with pytest.raises(StoreUnreachable, match="certificate verify failed"):
        await open_store(f"{url}&sslrootcert={unknown_authority.file}")


async def test_a_certificate_for_another_host_name_is_refused_at_once(
    postgres: Postgres, port: int, authority: CertificateAuthority
) -> None:
    url = f"{postgres.url('public', host='db.internal', port=port)}&hostaddr={HOST}"
    with pytest.raises(StoreUnreachable, match="does not match host name"):
        await open_store(f"{url}&sslmode=verify-full&sslrootcert={authority.file}")


async def test_a_server_without_tls_is_refused_where_tls_is_required(
    postgres: Postgres, tmp_path: Path
) -> None:
    """An attacker between client and server must not be able to turn TLS off."""
    proxy = FaultyProxy(tmp_path, postgres.folder)
    async with await asyncio.start_server(proxy.forward, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnreachable, match="does not support SSL"):
            await open_store(f"{postgres.url('public', host=HOST, port=port)}&sslmode=require")
        await proxy.close()
