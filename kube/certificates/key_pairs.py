"""Creates, parses and compares certificates and keys; free of side effects except for random numbers in keys."""

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
"""Maximum length of a common name, in characters (RFC 5280, ub-common-name)."""
SIGNS = (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)
"""Key types that a CA may have: we create the first type, a CA from a user may have either."""
UNREADABLE = (ValueError, UnsupportedAlgorithm, TypeError, x509.InvalidVersion, x509.UnsupportedGeneralNameType)
"""Exceptions that the library raises for a malformed or unsupported certificate or key."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both in PEM."""

    certificate: str
    key: str

    @property
    def parsed(self) -> x509.Certificate:
        """Return the parsed certificate."""
        return _read(self.certificate)

    def __repr__(self) -> str:
        """Return a representation without the key, so that no log contains it."""
        return f"Pair(serial={serial(self.parsed)})"


def pair(certificate: str, key: str) -> Pair | None:
    """Return the pair if both can be parsed and belong together, else None."""
    try:
        public = serialization.load_pem_private_key(key.encode(), None).public_key()
        if _read(certificate).public_key() != public:
            return None
    except UNREADABLE:
        return None
    return Pair(certificate, key)


def certificates(text: str) -> list[str]:
    """Return the certificates in a text, each in normalized PEM; whatever cannot be parsed is left out."""
    found = (f"{BEGIN}{part.partition(END)[0]}{END}\n" for part in text.split(BEGIN)[1:])
    return [_pem(certificate) for each in found if (certificate := _read_or_none(each))]


def new_authority(component: Component, now: datetime) -> Pair:
    """Create a CA certificate for a component, with its key; each CA has a unique subject name."""
    key, number = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    name = _name(f"{component.name} certificate authority {number:x}")
    ends = begins(now) + AUTHORITY_LIFETIMES * component.period
    builder = _builder(name, name, key.public_key(), number, begins(now), ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage(signs=True), critical=True)
    return _signed(builder, key, key)


def new_serving(signer: Pair, names: Iterable[str], component: Component, now: datetime) -> Pair:
    """Create a serving certificate for these names and addresses, with its key.

    It does not outlive its CA. It is also valid for client authentication, because KubeVirt's servers use the same
    certificate as clients of each other.
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
    """Return the end of validity for a serving certificate issued now."""
    return min(begins(now) + LIFETIMES * component.period, signer.parsed.not_valid_after_utc)


def names(certificate: str) -> list[str]:
    """Return the DNS names and IP addresses that a certificate is valid for."""
    try:
        found = _read(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*UNREADABLE, x509.ExtensionNotFound, x509.DuplicateExtension):
        return []
    addresses = (str(address) for address in found.get_values_for_type(x509.IPAddress))
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def may_sign(pair: Pair) -> bool:
    """Return whether the pair is a CA, with a key of a type that we can sign with."""
    try:
        is_authority = pair.parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (*UNREADABLE, x509.ExtensionNotFound, x509.DuplicateExtension):
        return False
    return is_authority and isinstance(serialization.load_pem_private_key(pair.key.encode(), None), SIGNS)


@lru_cache(maxsize=1024)
def is_signed_by(certificate: str, signer: str) -> bool:
    """Return whether the key of `signer` signed the certificate; both may be the same certificate."""
    try:
        _read(certificate).verify_directly_issued_by(_read(signer))
    except (*UNREADABLE, InvalidSignature):
        return False
    return True


def ends(certificate: str) -> datetime:
    """Return the end of the certificate's validity."""
    return _read(certificate).not_valid_after_utc


def is_valid(certificate: str, now: datetime) -> bool:
    """Return whether the current time is within the certificate's validity."""
    read = _read(certificate)
    return read.not_valid_before_utc <= now < read.not_valid_after_utc


def serial(certificate: x509.Certificate) -> str:
    """Return the serial number in hexadecimal, as users compare it."""
    return f"{certificate.serial_number:x}"


def fingerprint(certificate: str) -> str:
    """Return the certificate's SHA-256 fingerprint."""
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
    """Return the key usage of a CA, or of a server if `signs` is False."""
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
    """Return the authority key identifier: the CA's own subject key identifier, else one computed from its key."""
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
