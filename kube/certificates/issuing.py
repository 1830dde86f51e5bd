"""Certificates and keys: made, read, and held against each other. Pure but for the random numbers in a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kube.certificates.components import AUTHORITY_LIFETIMES, LIFETIMES, Component, begins

BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
LONGEST_NAME = 64
"""Characters of a common name (RFC 5280, ub-common-name)."""
SIGNS = (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)
"""Kinds of keys that an authority may have: ours are of the first, one that somebody brought may be of the other."""
UNREADABLE = (ValueError, UnsupportedAlgorithm, TypeError, x509.InvalidVersion, x509.UnsupportedGeneralNameType)
"""What the library raises of a certificate or key that is none, or of a kind that it does not know."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both in PEM."""

    certificate: str
    key: str

    @property
    def parsed(self) -> x509.Certificate:
        """The certificate, read."""
        return _read(self.certificate)

    def __repr__(self) -> str:
        """Without the key, wherever it may be printed."""
        return f"Pair(serial={serial(self.parsed)})"


def pair(certificate: str, key: str) -> Pair | None:
    """Both, where they can be read and belong together; else None."""
    try:
        public = serialization.load_pem_private_key(key.encode(), None).public_key()
        if _read(certificate).public_key() != public:
            return None
    except UNREADABLE:
        return None
    return Pair(certificate, key)


def certificates(text: str) -> list[str]:
    """The certificates in a text, one after another, each in the PEM that we write; what is none is left out."""
    found = (f"{BEGIN}{part.partition(END)[0]}{END}\n" for part in text.split(BEGIN)[1:])
    return [_pem(certificate) for each in found if (certificate := _read_or_none(each))]


def new_authority(component: Component, now: datetime) -> Pair:
    """A certificate that signs those of a component, and its key. No two have the same name."""
    key, number = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    name = _name(f"{component.name} certificate authority {number:x}")
    ends = begins(now) + AUTHORITY_LIFETIMES * component.period
    builder = _builder(name, name, key.public_key(), number, begins(now), ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage(signs=True), critical=True)
    return _signed(builder, key, key)


def new_serving(signer: Pair, names: Iterable[str], component: Component, now: datetime) -> Pair:
    """A certificate for a server of these names or addresses, and its key. It does not outlive who signs it.

    KubeVirt's servers are each other's clients, and show the same certificate.
    """
    key, names, authority = ec.generate_private_key(ec.SECP256R1()), list(names), signer.parsed
    signing = serialization.load_pem_private_key(signer.key.encode(), None)
    if not isinstance(signing, SIGNS):
        raise TypeError("the authority's key signs no certificates")
    ends = serving_ends(signer, component, now)
    number = x509.random_serial_number()
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = _builder(_name(names[0]), authority.subject, key.public_key(), number, begins(now), ends)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (usage(signs=False), True),
        (uses, False),
        (x509.SubjectAlternativeName([_general(name) for name in names]), False),
        (_identifier(authority), False),
    ):
        builder = builder.add_extension(extension, critical)
    return _signed(builder, signing, key)


def serving_ends(signer: Pair, component: Component, now: datetime) -> datetime:
    """Until when a server's certificate is valid that is issued now."""
    return min(begins(now) + LIFETIMES * component.period, signer.parsed.not_valid_after_utc)


def names(certificate: str) -> list[str]:
    """The names and addresses that a certificate is for."""
    try:
        found = _read(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*UNREADABLE, x509.ExtensionNotFound, x509.DuplicateExtension):
        return []
    addresses = (str(address) for address in found.get_values_for_type(x509.IPAddress))
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def may_sign(pair: Pair) -> bool:
    """Whether it is an authority's, with a key that we can sign with."""
    try:
        is_authority = pair.parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (*UNREADABLE, x509.ExtensionNotFound, x509.DuplicateExtension):
        return False
    return is_authority and isinstance(serialization.load_pem_private_key(pair.key.encode(), None), SIGNS)


@lru_cache(maxsize=1024)
def is_signed_by(certificate: str, signer: str) -> bool:
    """Whether the key of one certificate has signed the other, or itself."""
    try:
        _read(certificate).verify_directly_issued_by(_read(signer))
    except (*UNREADABLE, InvalidSignature):
        return False
    return True


def ends(certificate: str) -> datetime:
    """Until when it is valid."""
    return _read(certificate).not_valid_after_utc


def is_valid(certificate: str, now: datetime) -> bool:
    """Whether a client takes it now, by its dates."""
    read = _read(certificate)
    return read.not_valid_before_utc <= now < read.not_valid_after_utc


def serial(certificate: x509.Certificate) -> str:
    """The serial number as people compare it: hexadecimal."""
    return f"{certificate.serial_number:x}"


def fingerprint(certificate: str) -> str:
    """What no two certificates share."""
    return _read(certificate).fingerprint(hashes.SHA256()).hex()


@lru_cache(maxsize=1024)
def _read(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


def _read_or_none(text: str) -> x509.Certificate | None:
    try:
        return _read(text)
    except UNREADABLE:
        return None


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    number: int,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(number)
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def usage(*, signs: bool) -> x509.KeyUsage:
    """What a key is for: that of an authority, or of a server."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder,
    signer: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    key: ec.EllipticCurvePrivateKey,
) -> Pair:
    form, kind = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    text = key.private_bytes(kind, form, serialization.NoEncryption()).decode()
    return Pair(_pem(builder.sign(signer, hashes.SHA256())), text)


def _identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """What names the authority's key in a certificate: the number it has given itself, where it has."""
    try:
        own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:LONGEST_NAME])])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
