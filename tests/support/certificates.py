"""An authority, and certificates of its making."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.dev.embedded.home import engine_account

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files that also the engines' account may read."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates. Its own is in `file`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        directory.mkdir(parents=True, exist_ok=True)
        own = _builder(name, name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), True
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def sign(self, name: str, *hosts: str, until: timedelta = DAY) -> Pair:
        """For a server of these hosts, or a client of this name; good until so long from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, self._name, key, until)
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, False)
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        pair.key.chmod(0o600)
        account = engine_account()
        if account is not None:
            os.chown(pair.key, account.uid, account.gid)
        return pair


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePrivateKey, until: timedelta = DAY
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + until)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
