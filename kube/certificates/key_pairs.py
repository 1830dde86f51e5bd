"""Creates, parses and compares certificates and keys, without side effects except for random numbers in keys."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kube.certificates.components import CA_LIFETIME_PERIODS, CLOCK_SKEW, SERVING_LIFETIME_PERIODS, Component

PEM_BEGIN, PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
MAX_COMMON_NAME_CHARACTERS = 64
"""Maximum length of a common name, in characters (RFC 5280, ub-common-name)."""
SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""Key types for a CA: this project creates elliptic curve keys; a user's own CA may also have an RSA key."""
PARSE_ERRORS = (ValueError, UnsupportedAlgorithm, TypeError, x509.InvalidVersion, x509.UnsupportedGeneralNameType)
"""Exceptions that `cryptography` raises for a malformed or unsupported certificate or key."""
EXTENSION_ERRORS = (*PARSE_ERRORS, x509.ExtensionNotFound, x509.DuplicateExtension)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, both in PEM format."""

    certificate: str
    key: str

    @property
    def parsed_certificate(self) -> x509.Certificate:
        """Return the parsed certificate."""
        return _load_certificate(self.certificate)

    def __repr__(self) -> str:
        """Return a representation without the key, so that no log contains it."""
        return f"KeyPair(serial={format_serial(self.parsed_certificate)})"


def parse_key_pair(certificate: str, key: str) -> KeyPair | None:
    """Parse a certificate and its key; return None if one is invalid or they do not belong together."""
    with suppress(*PARSE_ERRORS):
        if _load_certificate(certificate).public_key() == _load_key(key).public_key():
            return KeyPair(certificate, key)
    return None


def parse_certificates(text: str) -> list[str]:
    """Return the certificates in a PEM text, each as normalized PEM; certificates that cannot be parsed are omitted."""
    certificates: list[str] = []
    for part in text.split(PEM_BEGIN)[1:]:
        with suppress(*PARSE_ERRORS):
            certificate = _load_certificate(f"{PEM_BEGIN}{part.partition(PEM_END)[0]}{PEM_END}\n")
            certificates.append(certificate.public_bytes(serialization.Encoding.PEM).decode())
    return certificates


def create_ca(component: Component, now: datetime) -> KeyPair:
    """Create a CA certificate for a component, with its key; each CA has a unique subject name."""
    key, number = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    name = _build_subject(f"{component.name} certificate authority {number:x}")
    builder = _create_certificate_builder(name, key, number, now)
    builder = builder.not_valid_after(now - CLOCK_SKEW + CA_LIFETIME_PERIODS * component.renewal_period)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(build_key_usage(is_ca=True), critical=True)
    return _sign(builder.issuer_name(name), key, key)


def issue_serving_certificate(ca: KeyPair, names: Iterable[str], component: Component, now: datetime) -> KeyPair:
    """Issue a serving certificate for these DNS names and IP addresses, with its key.

    The certificate expires no later than its CA. It is also valid for client authentication, because KubeVirt's servers
    use it as clients of each other.
    """
    key, names, ca_certificate = ec.generate_private_key(ec.SECP256R1()), list(names), ca.parsed_certificate
    ca_key = _load_key(ca.key)
    if not isinstance(ca_key, SigningKey):
        raise TypeError(f"unsupported CA key {type(ca_key).__name__}: use an elliptic curve or RSA key")
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = _create_certificate_builder(_build_subject(names[0]), key, x509.random_serial_number(), now)
    builder = builder.not_valid_after(compute_serving_not_after(ca, component, now))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(build_key_usage(is_ca=False), critical=True)
    builder = builder.add_extension(uses, critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(map(_build_general_name, names)), critical=False)
    builder = builder.add_extension(_build_authority_key_identifier(ca_certificate), critical=False)
    return _sign(builder.issuer_name(ca_certificate.subject), ca_key, key)


def compute_serving_not_after(ca: KeyPair, component: Component, now: datetime) -> datetime:
    """Return the expiry time of a serving certificate that this CA issues now."""
    lifetime = SERVING_LIFETIME_PERIODS * component.renewal_period
    return min(now - CLOCK_SKEW + lifetime, ca.parsed_certificate.not_valid_after_utc)


def compute_renewal_time(certificate: x509.Certificate, component: Component) -> datetime:
    """Return the renewal time: one period after issuance, or two thirds of the lifetime if that is earlier.

    A foreign issuer's certificate may have a lifetime that is shorter than the period.
    """
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return min(begin + CLOCK_SKEW + component.renewal_period, begin + (end - begin) * 2 / 3)


def get_subject_alt_names(certificate: str) -> list[str]:
    """Return the DNS names and IP addresses for which a certificate is valid."""
    try:
        names = _load_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except EXTENSION_ERRORS:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def is_signing_ca(pair: KeyPair) -> bool:
    """Return whether the certificate is a CA certificate, and its key has a supported type."""
    try:
        is_ca = pair.parsed_certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except EXTENSION_ERRORS:
        return False
    return is_ca and isinstance(_load_key(pair.key), SigningKey)


@lru_cache(maxsize=1024)
def is_signed_by(certificate: str, signer: str) -> bool:
    """Return whether the key of `signer` signed `certificate`, which may be the same certificate (self-signed)."""
    try:
        _load_certificate(certificate).verify_directly_issued_by(_load_certificate(signer))
    except (*PARSE_ERRORS, InvalidSignature):
        return False
    return True


def get_not_after(certificate: str) -> datetime:
    """Return the certificate's expiry time."""
    return _load_certificate(certificate).not_valid_after_utc


def is_valid(certificate: str, now: datetime) -> bool:
    """Return whether `now` is within the certificate's validity period."""
    parsed = _load_certificate(certificate)
    return parsed.not_valid_before_utc <= now < parsed.not_valid_after_utc


def format_serial(certificate: x509.Certificate) -> str:
    """Format the certificate's serial number in hexadecimal."""
    return f"{certificate.serial_number:x}"


def compute_fingerprint(certificate: str) -> str:
    """Return the certificate's SHA-256 fingerprint."""
    return _load_certificate(certificate).fingerprint(hashes.SHA256()).hex()


def build_key_usage(*, is_ca: bool) -> x509.KeyUsage:
    """Build the key usage extension of a CA certificate, or, if `is_ca` is false, of a serving certificate."""
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@lru_cache(maxsize=1024)
def _load_certificate(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


def _load_key(text: str) -> PrivateKeyTypes:
    return serialization.load_pem_private_key(text.encode(), None)


def _create_certificate_builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, serial_number: int, now: datetime
) -> x509.CertificateBuilder:
    """Create the builder of a certificate that is valid from `now`, without an expiry time, an issuer and uses."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(serial_number)
        .not_valid_before(now - CLOCK_SKEW)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _sign(builder: x509.CertificateBuilder, ca_key: SigningKey, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    form, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    certificate = builder.sign(ca_key, hashes.SHA256()).public_bytes(encoding).decode()
    return KeyPair(certificate, key.private_bytes(encoding, form, serialization.NoEncryption()).decode())


def _build_authority_key_identifier(ca_certificate: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Build the authority key identifier from the CA's subject key identifier, or else from the CA's key."""
    try:
        key_identifier = ca_certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_certificate.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_identifier)


def _build_subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:MAX_COMMON_NAME_CHARACTERS])])


def _build_general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
