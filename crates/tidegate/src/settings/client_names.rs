//! The names that a client's certificate must have, where only some of those that an authority has
//! signed may come in.
//!
//! Chains and signatures are rustls' affair; only names are compared here, after those.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, DnsName, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use webpki::EndEntityCert;

/// The most names of one table.
pub(super) const NAMES_MAX: usize = 1_000;

/// A name that a certificate may have: a DNS name, an IP address, or a URI such as a SPIFFE id.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transparent)]
pub struct ClientName(#[schemars(with = "String")] Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Server(ServerName<'static>),
    Uri(Box<str>),
}

impl ClientName {
    fn is_of(&self, certificate: &EndEntityCert<'_>) -> bool {
        match &self.0 {
            Kind::Server(name) => certificate.verify_is_valid_for_subject_name(name).is_ok(),
            Kind::Uri(uri) => certificate.valid_uri_names().any(|name| name == &**uri),
        }
    }
}

impl FromStr for ClientName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(Kind::Uri(text.into())));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self(Kind::Server(ServerName::IpAddress(ip.into()))));
        }
        let name = DnsName::try_from(text.to_owned()).map_err(|_| {
            let remedy = "write a DNS name without `*`, an IP address, or a URI like \
                          \"spiffe://example.com/envoy\"";
            format!("\"{text}\" is not a name that a certificate can have\n{remedy}")
        })?;
        Ok(Self(Kind::Server(ServerName::DnsName(name))))
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Server(name) => formatter.write_str(&name.to_str()),
            Kind::Uri(uri) => formatter.write_str(uri),
        }
    }
}

impl<'de> Deserialize<'de> for ClientName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for ClientName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Lets clients in whose certificate is trusted and has one of these names.
#[derive(Debug)]
pub(super) struct NamedClients {
    pub(super) trusted: Arc<dyn ClientCertVerifier>,
    pub(super) names: Box<[ClientName]>,
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.trusted.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.trusted.verify_client_cert(own, intermediates, now)?;
        let refused = |error| Err(Error::InvalidCertificate(error));
        let Ok(certificate) = EndEntityCert::try_from(own) else {
            return refused(CertificateError::BadEncoding);
        };
        match self.names.iter().any(|name| name.is_of(&certificate)) {
            true => Ok(verified),
            false => refused(CertificateError::ApplicationVerificationFailure),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trusted.verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trusted.verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trusted.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let names = ["envoy.example.com", "10.0.0.7", "::1", "spiffe://example.com/ns/edge"];
        for text in names {
            assert_eq!(text.parse::<ClientName>().expect(text).to_string(), text);
        }
        for text in ["", "*.example.com", "a b", "spiffe://a b", "https://exämple.com/"] {
            let error = text.parse::<ClientName>().expect_err(text);
            assert!(error.starts_with(&format!("\"{text}\" is not a name")), "{error}");
        }
    }
}
